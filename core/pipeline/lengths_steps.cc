#include "pipeline/lengths_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <utility>

#include "pipeline/sample_steps.h"

namespace stoker {
namespace {

ImageLengths lengths_of(const MeasuredImage& image) {
  return {.key = image.key,
          .height_px = image.upright.height,
          .width_px = image.upright.width,
          .prepared_height_px = image.prepared.height,
          .prepared_width_px = image.prepared.width,
          .object_bytes = image.object_bytes,
          .tag = image.tag,
          .is_size_from_row = image.is_size_from_row,
          .is_inline = image.is_inline,
          .bad = image.bad};
}

MeasuredImage measured_from(const ImageLengths& image, bool is_frame) {
  MeasuredImage out;
  out.key = image.key;
  out.is_inline = image.is_inline;
  out.upright = {image.height_px, image.width_px};
  out.prepared = {image.prepared_height_px, image.prepared_width_px};
  out.is_size_from_row = image.is_size_from_row;
  out.is_frame = is_frame;
  out.object_bytes = image.object_bytes;
  out.tag = image.tag;
  return out;
}

Status not_ours(std::uint64_t order_index, std::string_view why) {
  return {Reason::kPlanMismatch,
          fmt::format("the lengths that another rank told of sample {} of the order do not fit this rank's settings: "
                      "{}. All ranks need the same settings, model folder and version",
                      order_index, why)};
}

}  // namespace

SizeWish wish_of(const qwen_vl::SizeRequest& r) {
  return {.min_pixels = r.min_pixels,
          .max_pixels = r.max_pixels,
          .total_pixels = r.total_pixels,
          .resized_height_px = r.resized.height,
          .resized_width_px = r.resized.width};
}

qwen_vl::SizeRequest request_of(const SizeWish& w) {
  return {.min_pixels = w.min_pixels,
          .max_pixels = w.max_pixels,
          .total_pixels = w.total_pixels,
          .resized = {w.resized_height_px, w.resized_width_px}};
}

SampleLengths lengths_of(const MeasuredSample& sample) {
  SampleLengths out{.order_index = sample.order_index};
  if (!sample.bad.ok()) {
    out.bad = sample.bad.reason();
    out.message = sample.bad.message();
    out.bad_media = sample.bad_media;
    out.bad_image = sample.bad_image;
    return out;
  }
  out.tokens = sample.tokens;
  out.n_ids = sample.n_ids;
  out.n_trained = sample.n_trained;
  out.is_truncated = sample.is_truncated;
  for (const MeasuredImage& image : sample.images) out.images.push_back({lengths_of(image), wish_of(image.request)});
  for (const MeasuredClip& clip : sample.clips) {
    ClipLengths& to = out.clips.emplace_back();
    to.wish = wish_of(clip.request);
    to.frames_per_s = clip.frames_per_s;
    to.source_frames_per_s = clip.source_frames_per_s;
    for (const MeasuredImage& frame : clip.frames) to.frames.push_back(lengths_of(frame));
  }
  return out;
}

Result<MeasuredSample> measured_from(const SampleLengths& lengths, const OrderEntry& entry,
                                     const OutputSettings& output, const qwen_vl::QwenVl& model) {
  MeasuredSample out;
  out.order_index = lengths.order_index;
  out.entry = entry;
  out.from = LengthsFrom::kRank;
  out.has_text = false;
  if (!lengths.is_usable()) {
    out.bad = Status(lengths.bad, lengths.message);
    if (out.bad.code() != Code::kBadSample) {
      return not_ours(lengths.order_index, fmt::format("{} is nothing that makes a sample bad", name_of(lengths.bad)));
    }
    out.bad_media = lengths.bad_media;
    out.bad_image = lengths.bad_image;
    return out;
  }
  out.n_ids = lengths.n_ids;
  out.n_trained = lengths.n_trained;
  out.is_truncated = lengths.is_truncated;
  for (const WishedImageLengths& image : lengths.images) {
    MeasuredImage& to = out.images.emplace_back(measured_from(image.image, false));
    to.request = request_of(image.wish);
    auto plan = model.plan_image(to.prepared, to.request);
    if (!plan.ok()) return not_ours(lengths.order_index, plan.status().message());
    to.plan = *plan;
  }
  for (const ClipLengths& clip : lengths.clips) {
    MeasuredClip& to = out.clips.emplace_back();
    to.request = request_of(clip.wish);
    to.frames_per_s = clip.frames_per_s;
    to.source_frames_per_s = clip.source_frames_per_s;
    for (const ImageLengths& frame : clip.frames) to.frames.push_back(measured_from(frame, true));
  }
  for (std::size_t k = 0; k < out.n_pictures(); ++k) {
    const MeasuredImage& picture = out.picture(k);
    if (std::min(picture.upright.height, picture.upright.width) < 1 ||
        std::min(picture.prepared.height, picture.prepared.width) < 1) {
      return not_ours(lengths.order_index, "a picture without a size");
    }
  }
  if (Status status = finish_measured(output, model, out); !status.ok()) {
    return not_ours(lengths.order_index, status.message());
  }
  if (out.tokens != lengths.tokens || out.tokens < 1 || out.n_trained > out.n_ids) {
    return not_ours(lengths.order_index, fmt::format("{} tokens there, {} here", lengths.tokens, out.tokens));
  }
  return out;
}

Result<std::shared_ptr<MeasuredWindow>> assemble_window(const OrderWindow& window, std::vector<MeasuredSample> own,
                                                        std::span<const SampleLengths> told,
                                                        const OutputSettings& output, const qwen_vl::QwenVl& model) {
  auto out = std::make_shared<MeasuredWindow>();
  out->window = window.window;
  out->samples.resize(window.places.size());
  std::unordered_map<std::uint64_t, std::size_t> open;  // order index -> place that has nothing yet
  for (std::size_t i = 0; i < window.places.size(); ++i) open.emplace(window.places[i].order_index, i);
  const auto place_of = [&](std::uint64_t order_index) -> Result<std::size_t> {
    const auto found = open.find(order_index);
    if (found == open.end()) {
      return Status(Reason::kPlanMismatch, fmt::format("lengths of sample {} of the order came twice or unasked, while "
                                                       "window {} was put together",
                                                       order_index, window.window));
    }
    const std::size_t place = found->second;
    open.erase(found);
    return place;
  };
  for (MeasuredSample& sample : own) {
    STOKER_TRY(const std::size_t place, place_of(sample.order_index));
    out->samples[place] = std::move(sample);
  }
  for (const SampleLengths& lengths : told) {
    STOKER_TRY(const std::size_t place, place_of(lengths.order_index));
    STOKER_TRY(out->samples[place], measured_from(lengths, window.places[place].entry, output, model));
  }
  if (open.empty()) return out;
  return Status(Reason::kPlanMismatch, fmt::format("nobody told the lengths of {} samples of window {}, such as {}",
                                                   open.size(), window.window, open.begin()->first));
}

void key_pictures(const std::vector<MediaRef>& media, const StorageSettings& storage, MeasuredSample& sample) {
  const std::vector<PictureRef> pictures = pictures_of(media);
  for (std::size_t k = 0; k < std::min(pictures.size(), sample.n_pictures()); ++k) {
    MeasuredImage& picture = sample.picture(k);
    picture.key = media_key(storage.endpoint, picture.is_inline ? *pictures[k].reference : picture.url);
  }
}

namespace {

/// What of a row that was read again is not as its lengths say; empty: nothing.
std::string difference(const MeasuredSample& read, const MeasuredSample& known) {
  if (static_cast<std::int64_t>(read.text.ids.size()) != known.n_ids) {
    return fmt::format("{} token ids were planned, {} came", known.n_ids, read.text.ids.size());
  }
  if (read.text.n_trained != known.n_trained) {
    return fmt::format("{} trained tokens were planned, {} came", known.n_trained, read.text.n_trained);
  }
  // Another rank may know an object by another name: its node has the data in another folder, or asks another gateway.
  const bool has_our_keys = known.from != LengthsFrom::kRank;
  const auto are_equal = [&](const std::vector<MeasuredImage>& a, const std::vector<MeasuredImage>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const MeasuredImage& x, const MeasuredImage& y) {
      return (!has_our_keys || x.key == y.key) && x.is_inline == y.is_inline && x.request == y.request;
    });
  };
  bool is_equal = are_equal(read.images, known.images) && read.clips.size() == known.clips.size();
  for (std::size_t c = 0; is_equal && c < read.clips.size(); ++c) {
    const MeasuredClip& clip = read.clips[c];
    is_equal = are_equal(clip.frames, known.clips[c].frames) && clip.request == known.clips[c].request &&
               clip.frames_per_s == known.clips[c].frames_per_s &&
               clip.source_frames_per_s == known.clips[c].source_frames_per_s;
  }
  return is_equal ? "" : "its media are not those that were planned";
}

/// The row's text and URLs, cut where the sample was.
Status read_again(const LoaderSettings& settings, const Dataset& dataset, const qwen_vl::QwenVl& model,
                  const MeasuredSample& known, MeasuredSample& read) {
  thread_local std::string buffer;
  const OrderEntry& entry = known.entry;
  STOKER_TRY(const std::string_view line, dataset.manifest(entry.source).read(entry.row, buffer));
  Sample row;
  STOKER_CHECKED(read_sample(line, dataset.media_root(entry.source), dataset.rows(entry.source), settings.output, model,
                             read, row));
  key_pictures(row.media, settings.storage, read);
  for (std::size_t i = 0; i < std::min(read.images.size(), known.images.size()); ++i) {
    read.images[i].upright = known.images[i].upright;
    read.images[i].prepared = known.images[i].prepared;
    read.images[i].plan = known.images[i].plan;
  }
  STOKER_CHECKED(finish_text(model, read));
  if (!known.is_truncated) return {};
  const auto& cuts = read.text.cuts;
  const auto cut = std::find_if(cuts.begin(), cuts.end(), [&](const auto& c) { return c.n_ids == known.n_ids; });
  if (cut == cuts.end()) return {};  // a difference, which is told
  cut_text(read.text, static_cast<std::size_t>(cut - cuts.begin()));
  read.images.resize(std::min(read.images.size(), known.images.size()));
  read.clips.resize(std::min(read.clips.size(), known.clips.size()));
  return {};
}

Status no_such_lengths(const LoaderSettings& settings, const Dataset& dataset, const MeasuredSample& known,
                       std::string_view what) {
  const std::string row = dataset.manifest(known.entry.source).describe(known.entry.row);
  if (known.from == LengthsFrom::kRank) {
    return {Reason::kPlanMismatch,
            fmt::format("{}: the row is not as the rank that measured it says: {}. All ranks need the same settings, "
                        "model folder, user code and version",
                        row, what)};
  }
  return {Reason::kIndexDir,
          fmt::format("{}: the row is not as the index says: {}. {} is damaged, or user code changed without its "
                      "version; the entry is dropped, and if it comes again, remove that folder",
                      row, what, (std::filesystem::path(settings.index_dir) / "lengths").string())};
}

}  // namespace

Result<MeasuredSample> complete_sample(const LoaderSettings& settings, const Dataset& dataset,
                                       const qwen_vl::QwenVl& model, const MeasuredSample& known) {
  MeasuredSample read;
  read.order_index = known.order_index;
  read.entry = known.entry;
  const Status status = read_again(settings, dataset, model, known, read);
  if (status.code() == Code::kBadSample) return no_such_lengths(settings, dataset, known, status.to_string());
  if (!status.ok()) return status;
  const std::string differs = difference(read, known);
  if (!differs.empty()) return no_such_lengths(settings, dataset, known, differs);
  MeasuredSample out = known;
  out.has_text = true;
  out.text = std::move(read.text);
  for (std::size_t k = 0; k < out.n_pictures(); ++k) out.picture(k).url = std::move(read.picture(k).url);
  return out;
}

}  // namespace stoker
