#include "pipeline/known_lengths.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "base/hash.h"
#include "manifest/files.h"
#include "media/formats.h"
#include "pipeline/lengths_steps.h"
#include "pipeline/sample_steps.h"

namespace stoker {
namespace {

// Count up where a header or a row comes to something else than before, with the same settings.
constexpr int kMediaVersion = 1;
constexpr int kTextVersion = 1;

Hash128 media_rules(const LoaderSettings& settings) {
  const ImageLimits& limits = settings.output.image.limits;
  std::string rules = fmt::format("media {} pixels {} scans {}", kMediaVersion, limits.max_pixels, limits.max_scans);
  for (const FormatEntry& format : formats()) rules += fmt::format(" {}", name_of(format.format));
  return hash128(rules);
}

Hash128 text_rules(const LoaderSettings& settings, const qwen_vl::QwenVl& model) {
  const OutputSettings& o = settings.output;
  std::string rules = fmt::format(
      "text {}\nmodel {}\nprofile {}\nlabels {} {} {} {}\ntemplate {}\nboxes {}\nstore {}\n", kTextVersion,
      model.fingerprint(), o.profile.facts(), static_cast<int>(o.labels.train_on),
      static_cast<int>(o.labels.end_of_turn), o.labels.roles, static_cast<int>(o.labels.weights),
      static_cast<int>(o.template_engine), o.box_form ? static_cast<int>(*o.box_form) : -1, settings.storage.endpoint);
  if (o.user_code) rules += "user code " + o.user_code->identity();
  return hash128(rules);
}

/// What tells a manifest's rows from all others. Where rows are offsets the fingerprint is that of samples, and a row
/// that changed elsewhere would be taken for the old one.
std::string content_of(const Manifest& manifest) {
  if (manifest.row_numbers() == RowNumbers::kCounted) return manifest.fingerprint();
  const auto stamp = stamp_of(manifest.path());
  if (!stamp.ok()) return manifest.fingerprint();  // gone: the next window says so
  return fmt::format("{} {} {}", manifest.fingerprint(), stamp->modified_ns, stamp->inode);
}

/// A number for each source: of its content and of how its rows are read.
std::vector<std::uint64_t> numbers_of(const LoaderSettings& settings, const Dataset& dataset) {
  std::string row_limits;
  for (const DataSettings& data : settings.output.data) {
    if (data.max_row_bytes != DataSettings{}.max_row_bytes) row_limits += fmt::format(" {}", data.max_row_bytes);
  }
  std::vector<std::uint64_t> out;
  for (std::uint32_t i = 0; i < dataset.n_sources(); ++i) {
    out.push_back(hash64(fmt::format("{}\n{}\n{}\n{}", content_of(dataset.manifest(i)), dataset.media_root(i),
                                     describe(dataset.rows(i)), row_limits)));
  }
  return out;
}

std::string folder_of(const LoaderSettings& settings) {
  return settings.index_dir.empty() ? "" : (std::filesystem::path(settings.index_dir) / "lengths").string();
}

TextFacts::Picture picture_of(const MeasuredImage& image) {
  return {.key = image.key, .is_inline = image.is_inline, .object_bytes = image.is_inline ? image.object_bytes : 0};
}

}  // namespace

qwen_vl::SizePx upright_size(const MediaFacts& facts, const ImageOptions& options) {
  ImageInfo info;
  info.height_px = facts.height_px;
  info.width_px = facts.width_px;
  info.orientation = facts.orientation;
  info.is_turned_always = facts.is_turned_always;
  return upright_size(info, options);
}

KnownLengths::KnownLengths(const LoaderSettings& settings, const Dataset& dataset,
                           std::shared_ptr<const qwen_vl::QwenVl> model, const std::stop_token& stop)
    : settings_(settings),
      model_(std::move(model)),
      sources_(numbers_of(settings, dataset)),
      index_(folder_of(settings), media_rules(settings), text_rules(settings, *model_), stop) {}

bool KnownLengths::recall(MeasuredSample& sample) const {
  const auto facts = index_.text(sources_[sample.entry.source], sample.entry.row);
  if (!facts) return false;
  const OutputSettings& output = settings_.output;
  MeasuredSample out;
  out.order_index = sample.order_index;
  out.entry = sample.entry;
  out.from = LengthsFrom::kIndex;
  out.has_text = false;
  out.n_ids = facts->n_ids;
  out.n_trained = facts->n_trained;
  for (const TextFacts::Cut& cut : facts->cuts) {
    out.text.cuts.push_back({cut.n_ids, cut.n_images, cut.n_clip_pads, cut.n_trained});
  }
  const auto is_sized = [&](const TextFacts::Picture& picture, std::int32_t row_height_px, std::int32_t row_width_px,
                            MeasuredImage& image) {
    image.key = picture.key;
    image.is_inline = picture.is_inline;
    image.object_bytes = picture.object_bytes;
    qwen_vl::SizePx upright{row_height_px, row_width_px};
    MediaRef row;
    row.height_px = row_height_px;
    row.width_px = row_width_px;
    image.is_size_from_row = is_size_trusted(output, row);
    if (!image.is_size_from_row) {
      const auto known = index_.media(picture.key);
      if (!known || !known->bad.ok()) return false;
      upright = upright_size(*known, output.image);
      image.object_bytes = known->object_bytes;
      image.tag = known->tag;
    }
    return plan_measured(output, *model_, upright, image).ok();
  };
  for (const TextFacts::Image& image : facts->images) {
    MeasuredImage& to = out.images.emplace_back();
    to.request = request_of(image.wish);
    if (!is_sized(image.picture, image.row_height_px, image.row_width_px, to)) return false;
  }
  for (const TextFacts::Clip& clip : facts->clips) {
    MeasuredClip& to = out.clips.emplace_back();
    to.request = request_of(clip.wish);
    to.frames_per_s = clip.frames_per_s;
    to.source_frames_per_s = clip.source_frames_per_s;
    for (const TextFacts::Picture& frame : clip.frames) {
      MeasuredImage& picture = to.frames.emplace_back();
      picture.is_frame = true;
      if (!is_sized(frame, clip.row_height_px, clip.row_width_px, picture)) return false;
    }
  }
  if (facts->sizes != 0 && facts->sizes != sizes_of(out)) return false;
  out.bad = finish_measured(output, *model_, out);
  if (!out.bad.ok()) {
    // A row that may be cut, but was kept when it fitted, says nothing of where.
    const bool is_final = output.over_long == OverLong::kDrop || !out.text.cuts.empty();
    if (out.bad.reason() != Reason::kSeqTooLong || !is_final) return false;
  }
  // Boxes of what is cut away may stand in what is left.
  if (out.is_truncated && facts->sizes != 0) return false;
  sample = std::move(out);
  return true;
}

void KnownLengths::keep_header(const Hash128& key, const ImageInfo& info, std::uint64_t object_bytes,
                               std::uint64_t tag) {
  index_.keep_media(key, {.height_px = info.height_px,
                          .width_px = info.width_px,
                          .orientation = static_cast<std::uint8_t>(info.orientation),
                          .is_turned_always = info.is_turned_always,
                          .object_bytes = object_bytes,
                          .tag = tag});
}

void KnownLengths::keep_bad(const Hash128& key, Status why) {
  constexpr std::size_t kMostWaiting = 100'000;
  MutexLock lock(mu_);
  if (bad_.size() < kMostWaiting) bad_.emplace_back(key, std::move(why));
}

TextFacts KnownLengths::facts_of(const std::vector<MediaRef>& media, const MeasuredSample& sample) const {
  TextFacts facts;
  std::size_t image = 0;
  std::size_t clip = 0;
  for (const MediaRef& ref : media) {
    if (ref.kind == MediaKind::kImage) {
      const MeasuredImage& measured = sample.images[image++];
      facts.images.push_back({.picture = picture_of(measured),
                              .row_height_px = ref.height_px,
                              .row_width_px = ref.width_px,
                              .wish = wish_of(measured.request)});
      continue;
    }
    const MeasuredClip& measured = sample.clips[clip++];
    TextFacts::Clip& to = facts.clips.emplace_back();
    to.row_height_px = ref.height_px;
    to.row_width_px = ref.width_px;
    to.wish = wish_of(measured.request);
    to.frames_per_s = measured.frames_per_s;
    to.source_frames_per_s = measured.source_frames_per_s;
    for (const MeasuredImage& frame : measured.frames) to.frames.push_back(picture_of(frame));
  }
  return facts;
}

void KnownLengths::keep_text(const OrderEntry& entry, const TextFacts& facts) {
  index_.keep_text(sources_[entry.source], entry.row, facts);
}

std::uint64_t KnownLengths::sizes_of(const MeasuredSample& sample) {
  std::string sizes;
  for (const MeasuredImage& image : sample.images) {
    sizes += fmt::format("{} {} {} {} ", image.upright.height, image.upright.width, image.plan.height_px,
                         image.plan.width_px);
  }
  return hash64(sizes) | 1;  // 0 says that there are none
}

void KnownLengths::measured(std::uint64_t n_samples, std::uint64_t n_bad) {
  std::vector<std::pair<Hash128, Status>> kept;
  {
    MutexLock lock(mu_);
    n_samples_ += n_samples;
    n_bad_ += n_bad;
    if (static_cast<double>(n_bad_) <= settings_.bad_samples.max_fraction * static_cast<double>(n_samples_)) {
      kept.swap(bad_);
    }
  }
  for (auto& [key, why] : kept) {
    MediaFacts facts;
    facts.bad = std::move(why);
    index_.keep_media(key, facts);
  }
  index_.flush();
}

}  // namespace stoker
