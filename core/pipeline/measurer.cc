#include "pipeline/measurer.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <optional>
#include <utility>

#include "pipeline/known_lengths.h"
#include "pipeline/lengths_steps.h"
#include "pipeline/sample_steps.h"
#include "source/url.h"

namespace stoker {
/// Positions under way. Parts are samples' rows and, added by them, their images' headers.
struct Measurer::Task {
  /// A header read, for every mention of its object.
  struct HeaderRead {
    std::optional<Result<Known>> got;
    std::shared_ptr<const WholeObject> whole;
    std::vector<PictureAt> waiting;
  };

  std::vector<MeasuredSample> samples;
  std::uint64_t priority = 0;
  std::stop_token stop;
  std::vector<TextFacts> facts;              // (samples) what is kept of their rows; empty without an index
  std::vector<std::atomic<int>> parts_left;  // (samples) of each sample; the last one closes it

  Mutex mu;
  std::condition_variable_any changed;
  std::size_t samples_left STOKER_GUARDED_BY(mu) = 0;
  Status fatal STOKER_GUARDED_BY(mu);
  std::unordered_map<Hash128, HeaderRead> reads STOKER_GUARDED_BY(mu);

  explicit Task(std::size_t n) : samples(n), parts_left(n), samples_left(n) {}
};

Measurer::Measurer(const LoaderSettings& settings, const Dataset& dataset, std::shared_ptr<const qwen_vl::QwenVl> model,
                   Fetcher& fetcher, WorkerPool& workers, MeasureOptions options)
    : settings_(settings),
      dataset_(dataset),
      model_(std::move(model)),
      fetcher_(fetcher),
      workers_(workers),
      options_(std::move(options)),
      whole_allowance_(std::make_shared<std::atomic<std::size_t>>(options_.max_whole_bytes)),
      header_sizes_(dataset.n_sources(), HeaderSize(settings.dp_size)) {}

Result<std::shared_ptr<MeasuredWindow>> Measurer::measure(const OrderWindow& window, std::uint64_t priority,
                                                          std::stop_token stop) {
  STOKER_TRY(auto samples, measure_part(window.places, priority, std::move(stop)));
  auto out = std::make_shared<MeasuredWindow>();
  out->window = window.window;
  out->samples = std::move(samples);
  return out;
}

Result<std::vector<MeasuredSample>> Measurer::measure_part(std::span<const OrderWindow::Place> places,
                                                           std::uint64_t priority, std::stop_token stop) {
  auto task = std::make_shared<Task>(places.size());
  task->priority = priority;
  task->stop = stop;
  if (options_.known != nullptr) task->facts.resize(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    MeasuredSample& sample = task->samples[i];
    sample.order_index = places[i].order_index;
    sample.entry = places[i].entry;
    task->parts_left[i] = 1;
    workers_.submit(priority, [this, task, i](int) { measure_sample(task, i); });
  }
  {
    MutexLock lock(task->mu);
    const bool is_done = task->changed.wait(
        lock, stop, [&]() STOKER_NO_ANALYSIS { return task->samples_left == 0 || !task->fatal.ok(); });
    if (!is_done) return Status(Reason::kStopped, "stopped while measuring");
    if (!task->fatal.ok()) return task->fatal;
  }
  if (options_.known != nullptr) {
    const auto n_bad = std::count_if(task->samples.begin(), task->samples.end(),
                                     [](const MeasuredSample& sample) { return !sample.bad.ok(); });
    options_.known->measured(task->samples.size(), static_cast<std::uint64_t>(n_bad));
  }
  return std::move(task->samples);
}

Result<std::shared_ptr<MeasuredWindow>> Measurer::assemble(const OrderWindow& window, std::vector<MeasuredSample> own,
                                                           std::span<const SampleLengths> told) const {
  return assemble_window(window, std::move(own), told, settings_.output, *model_);
}

void Measurer::measure_sample(const std::shared_ptr<Task>& task, std::size_t index) {
  if (task->stop.stop_requested()) return;
  MeasuredSample& sample = task->samples[index];
  if (options_.known != nullptr && !options_.on_row && headers_of(sample) != HeaderReads::kAll &&
      options_.known->recall(sample)) {
    recalled_.add(1);
    return part_done(task, index, -1, {});
  }
  std::vector<MediaRef> media;
  Status status = read_row(sample, media);
  if (status.ok() && options_.known != nullptr) task->facts[index] = options_.known->facts_of(media, sample);
  if (status.ok()) {
    const std::vector<PictureRef> pictures = pictures_of(media);
    task->parts_left[index] += static_cast<int>(pictures.size());
    for (std::size_t k = 0; k < pictures.size(); ++k) measure_image(task, index, k, pictures[k]);
  }
  part_done(task, index, -1, std::move(status));
}

Status Measurer::read_row(MeasuredSample& sample, std::vector<MediaRef>& media) const {
  thread_local std::string buffer;
  STOKER_TRY(const std::string_view line, dataset_.manifest(sample.entry.source).read(sample.entry.row, buffer));
  Sample row;
  RowNotes notes;
  STOKER_CHECKED(read_sample(line, dataset_.media_root(sample.entry.source), dataset_.rows(sample.entry.source),
                             settings_.output, *model_, sample, row, &notes));
  key_pictures(row.media, settings_.storage, sample);
  if (options_.on_row) options_.on_row(sample.order_index, row, notes);
  media = std::move(row.media);
  return {};
}

void Measurer::measure_image(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image,
                             const PictureRef& picture) {
  const MediaRef& media = *picture.media;
  MeasuredSample& sample = task->samples[index];
  MeasuredImage& measured = sample.picture(image);
  const HeaderReads headers = headers_of(sample);
  if (headers == HeaderReads::kAll) {
    if (is_size_trusted(settings_.output, media)) {
      measured.upright = {media.height_px, media.width_px};
      measured.is_size_from_row = true;
    }
    if (measured.is_inline) {
      return part_done(task, index, static_cast<std::int32_t>(image),
                       measure_inline(settings_.output, *model_, *picture.reference, measured));
    }
    fetch_header(task, index, image, Buffer(), first_read(sample));
  } else if (is_size_trusted(settings_.output, media)) {
    part_done(task, index, static_cast<std::int32_t>(image),
              apply_size(measured, {{media.height_px, media.width_px}, measured.object_bytes}, true));
  } else if (measure_known(task, index, image)) {
    return;
  } else if (measured.is_inline) {
    ImageInfo info;
    Status status = measure_inline(settings_.output, *model_, *picture.reference, measured, &info);
    if (status.ok() && options_.known != nullptr) {
      options_.known->keep_header(measured.key, info, measured.object_bytes, 0);
    }
    part_done(task, index, static_cast<std::int32_t>(image), std::move(status));
  } else if (headers == HeaderReads::kNone) {
    part_done(task, index, static_cast<std::int32_t>(image), {});
  } else {
    read_once(task, index, image);
  }
}

bool Measurer::is_to_look_again(const Hash128& key) {
  if (!options_.looks_again) return false;
  MutexLock lock(mu_);
  return looked_again_.insert(key).second;  // as few as bad samples are
}

bool Measurer::measure_known(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image) {
  MeasuredImage& measured = task->samples[index].picture(image);
  std::optional<Known> known;
  if (options_.known == nullptr) {
    known = known_size(measured.key);
  } else if (const auto facts = options_.known->media(measured.key)) {
    if (!facts->bad.ok()) {
      if (is_to_look_again(measured.key)) return false;
      part_done(task, index, static_cast<std::int32_t>(image), facts->bad);
      return true;
    }
    known = Known{upright_size(*facts, settings_.output.image), facts->object_bytes, facts->tag};
  }
  if (!known) return false;
  part_done(task, index, static_cast<std::int32_t>(image), apply_size(measured, *known, false));
  return true;
}

void Measurer::read_once(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image) {
  MeasuredImage& measured = task->samples[index].picture(image);
  std::optional<Result<Known>> got;
  {
    MutexLock lock(task->mu);
    const auto [read, is_first] = task->reads.try_emplace(measured.key);
    if (!is_first && !read->second.got) {
      read->second.waiting.push_back({index, image});
      return;
    }
    got = read->second.got;
    measured.whole = read->second.whole;
  }
  if (!got) return fetch_header(task, index, image, Buffer(), first_read(task->samples[index]));
  part_done(task, index, static_cast<std::int32_t>(image),
            got->ok() ? apply_size(measured, **got, false) : got->status());
}

void Measurer::read_ended(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image,
                          const Result<Known>& got) {
  const MeasuredImage& first = task->samples[index].picture(image);
  const bool is_proof = !got.ok() && got.status().code() == Code::kBadSample && !first.is_size_from_row;
  if (is_proof && options_.known != nullptr) options_.known->keep_bad(first.key, got.status());
  std::vector<PictureAt> all;
  {
    MutexLock lock(task->mu);
    if (const auto read = task->reads.find(task->samples[index].picture(image).key); read != task->reads.end()) {
      read->second.got = got;
      read->second.whole = task->samples[index].picture(image).whole;
      all.swap(read->second.waiting);
      for (const PictureAt& at : all) task->samples[at.sample].picture(at.picture).whole = read->second.whole;
    }
  }
  all.push_back({index, image});
  for (const PictureAt& at : all) {
    part_done(task, at.sample, static_cast<std::int32_t>(at.picture),
              got.ok() ? apply_size(task->samples[at.sample].picture(at.picture), *got, false) : got.status());
  }
}

void Measurer::fetch_header(std::shared_ptr<Task> task, std::size_t index, std::size_t image, Buffer have,
                            std::uint64_t want_end) {
  const std::string& url = task->samples[index].picture(image).url;
  if (!options_.headers_refused.empty()) {
    return read_ended(task, index, image,
                      Status(Reason::kSettings, shown_media(url) + ": " + options_.headers_refused));
  }
  const std::uint64_t offset = have.size();
  probes_.add(1);
  FetchRequest request{.url = url,
                       .offset = offset,
                       .length = want_end - offset,
                       .priority = task->priority,
                       .if_match = "",
                       .stop = task->stop,
                       .is_media = true};
  auto kept = std::make_shared<Buffer>(std::move(have));
  fetcher_.submit(std::move(request), [this, task = std::move(task), index, image, kept](Result<FetchedObject> got) {
    header_arrived(task, index, image, *kept, std::move(got));
  });
}

void Measurer::header_arrived(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image,
                              const Buffer& have, Result<FetchedObject> got) {
  if (!got.ok()) return read_ended(task, index, image, std::move(got).status());
  probe_bytes_.add(static_cast<std::int64_t>(got->bytes.size()));
  Buffer prefix(have.size() + got->bytes.size());
  if (have.size() > 0) std::memcpy(prefix.data(), have.data(), have.size());
  if (got->bytes.size() > 0) std::memcpy(prefix.data() + have.size(), got->bytes.data(), got->bytes.size());
  auto probed = probe(prefix.bytes(), got->total_bytes, settings_.output.image.limits);
  if (!probed.ok()) return read_ended(task, index, image, std::move(probed).status());
  if (!probed->info) {
    if (probed->need_end <= prefix.size()) {
      return read_ended(task, index, image, Status(Reason::kInternal, "a header probe asked for what it has"));
    }
    return fetch_header(task, index, image, std::move(prefix), probed->need_end);
  }
  MeasuredSample& sample = task->samples[index];
  note_prefix(sample, sample.picture(image), std::move(prefix), got->total_bytes, have.size() == 0);
  if (!probed->is_complete() && settings_.output.image.is_exif_applied) {
    return fetch_tail(task, index, image, *probed, got->total_bytes, std::move(got->etag));
  }
  header_known(task, index, image, *probed->info, got->total_bytes, got->etag);
}

void Measurer::note_prefix(MeasuredSample& sample, MeasuredImage& image, Buffer prefix, std::uint64_t total_bytes,
                           bool is_one_read) {
  std::uint64_t needed = prefix.size();
  for (const std::uint64_t size : HeaderSize::kSizes) {
    if (size >= needed) break;
    const auto probed = probe(prefix.bytes().first(size), total_bytes, settings_.output.image.limits);
    if (probed.ok() && probed->info) needed = size;
  }
  {
    MutexLock lock(mu_);
    header_sizes_[sample.entry.source].learned(needed, total_bytes);
  }
  const std::size_t n_bytes = prefix.size();
  // Parts that were read one after another may be of two versions.
  if (!is_one_read || n_bytes != total_bytes || n_bytes > HeaderSize::kMostWhole) return;
  std::size_t left = *whole_allowance_;
  while (left >= n_bytes && !whole_allowance_->compare_exchange_weak(left, left - n_bytes)) {
  }
  if (left >= n_bytes) image.whole = std::make_shared<const WholeObject>(std::move(prefix), whole_allowance_);
}

std::uint64_t Measurer::first_read(const MeasuredSample& sample) const {
  MutexLock lock(mu_);
  return header_sizes_[sample.entry.source].get();
}

void Measurer::fetch_tail(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image, const Probe& probed,
                          std::uint64_t object_bytes, std::string etag) {
  probes_.add(1);
  FetchRequest request{.url = task->samples[index].picture(image).url,
                       .offset = probed.need_begin,
                       .length = probed.need_end - probed.need_begin,
                       .priority = task->priority,
                       .if_match = "",
                       .stop = task->stop,
                       .is_media = true};
  fetcher_.submit(std::move(request),
                  [this, task, index, image, probed, object_bytes, etag = std::move(etag)](Result<FetchedObject> got) {
                    if (!got.ok()) return read_ended(task, index, image, std::move(got).status());
                    probe_bytes_.add(static_cast<std::int64_t>(got->bytes.size()));
                    header_known(task, index, image, finish_probe(probed, got->bytes.bytes()), object_bytes, etag);
                  });
}

void Measurer::header_known(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image,
                            const ImageInfo& info, std::uint64_t object_bytes, std::string_view etag) {
  const MeasuredImage& measured = task->samples[index].picture(image);
  const Known known{upright_size(info, settings_.output.image), object_bytes, tag_hash(etag)};
  if (measured.is_size_from_row && measured.upright != known.upright) {
    return read_ended(task, index, image, size_mismatch(measured, known.upright));
  }
  if (options_.known != nullptr) {
    options_.known->keep_header(measured.key, info, object_bytes, known.tag);
  } else {
    remember_size(measured.key, known);
  }
  read_ended(task, index, image, known);
}

Status Measurer::apply_size(MeasuredImage& image, const Known& known, bool is_from_row) const {
  image.tag = known.tag;
  image.object_bytes = known.object_bytes;
  image.is_size_from_row = image.is_size_from_row || is_from_row;
  return plan_measured(settings_.output, *model_, known.upright, image);
}

void Measurer::part_done(const std::shared_ptr<Task>& task, std::size_t index, std::int32_t image, Status status) {
  MeasuredSample& sample = task->samples[index];
  if (!status.ok() && status.code() != Code::kBadSample) return failed(*task, std::move(status));
  if (!status.ok()) {
    MutexLock lock(task->mu);
    if (image >= 0) sample.picture(static_cast<std::size_t>(image)).bad = status.reason();
    // Of several, the first: the same line on every rank, in every run.
    if (sample.bad.ok() || image < sample.bad_image) {
      sample.bad = std::move(status);
      sample.bad_image = image;
      if (image >= 0) sample.bad_media = shown_media(sample.picture(static_cast<std::size_t>(image)).url);
    }
  }
  if (--task->parts_left[index] > 0) return;
  if (sample.bad.ok() && sample.waiting) {  // rendering is no work for a thread that drives the network
    workers_.submit(task->priority, [this, task, index](int) { close_sample(*task, index); });
  } else {
    close_sample(*task, index);
  }
}

void Measurer::close_sample(Task& task, std::size_t index) {
  MeasuredSample& sample = task.samples[index];
  if (sample.bad.ok()) {
    Status finished = sample.has_text ? finish_sample(task, index) : Status();
    if (!finished.ok() && finished.code() != Code::kBadSample) return failed(task, std::move(finished));
    sample.bad = std::move(finished);
    if (sample.is_truncated) truncated_.add(1);
    if (sample.text.n_control_literals > 0) control_literals_.add(sample.text.n_control_literals);
  }
  sample.waiting = nullptr;
  if (!options_.keeps_text) {
    sample.text = {};
    sample.has_text = false;
  }
  MutexLock lock(task.mu);
  if (--task.samples_left == 0) task.changed.notify_all();
}

Status Measurer::finish_sample(Task& task, std::size_t index) {
  MeasuredSample& sample = task.samples[index];
  const bool has_boxes = sample.waiting != nullptr;
  STOKER_CHECKED(finish_text(*model_, sample));
  const qwen_vl::SampleText& text = sample.text;
  std::optional<TextFacts> facts;  // of the row before anything is cut from it
  if (options_.known != nullptr) {
    facts = std::move(task.facts[index]);
    facts->n_ids = static_cast<std::int64_t>(text.ids.size());
    facts->n_trained = text.n_trained;
    if (has_boxes) facts->sizes = KnownLengths::sizes_of(sample);
    if (settings_.output.over_long == OverLong::kTruncateTurns) {
      for (const auto& cut : text.cuts) {
        facts->cuts.push_back({cut.n_ids, cut.n_images, cut.n_clip_pads, cut.n_trained});
      }
    }
  }
  Status finished = finish_measured(settings_.output, *model_, sample);
  const bool is_too_long = finished.reason() == Reason::kSeqTooLong;
  if (facts && (finished.ok() || is_too_long)) {
    if (!sample.is_truncated && !is_too_long) facts->cuts.clear();
    options_.known->keep_text(sample.entry, *facts);
  }
  return finished;
}

void Measurer::failed(Task& task, Status status) {
  MutexLock lock(task.mu);
  if (task.fatal.ok()) task.fatal = std::move(status);
  task.changed.notify_all();
}

HeaderReads Measurer::headers_of(const MeasuredSample& sample) const {
  return options_.headers ? options_.headers(sample.order_index) : HeaderReads::kAsNeeded;
}

std::optional<Measurer::Known> Measurer::known_size(const Hash128& key) const {
  MutexLock lock(mu_);
  const auto found = known_.find(key);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

void Measurer::remember_size(const Hash128& key, const Known& known) {
  MutexLock lock(mu_);
  if (known_.size() >= options_.max_known_sizes) known_.clear();
  known_.emplace(key, known);
}

}  // namespace stoker
