#include "manifest/row_media.h"

#include <limits>
#include <string_view>
#include <utility>

namespace stoker {
namespace {

constexpr KeyNames<12> kMediaKeys = {"image", "path",   "url",        "image_url",  "source",         "base64",
                                     "width", "height", "min_pixels", "max_pixels", "resized_height", "resized_width"};
constexpr KeyNames<6> kClipKeys = {"video", "sample_fps", "fps", "raw_fps", "total_pixels", "video_url"};
constexpr KeyNames<4> kSourceKeys = {"type", "media_type", "data", "url"};

// A whole number of pixels, 0 for what means "unknown" in the wild.
template <typename Int>
Status read_pixels(const JsonView& value, std::string_view what, Int& out) {
  const double most = static_cast<double>(std::numeric_limits<Int>::max() / 2);
  const double n = is_number(value) ? number_of(value) : 0;
  if (!is_number(value) || n > most || (n >= 0 && n != static_cast<double>(static_cast<Int>(n)))) {
    return row_schema(value, "{} must be a whole number of pixels, not {}", what, shown(value.raw()));
  }
  out = n < 1 ? Int{0} : static_cast<Int>(n);
  return {};
}

Status read_rate(const JsonView& value, double& out) {
  if (!is_number(value)) return row_schema(value, "a frame rate must be a number, not {}", value.type_name());
  const double rate = number_of(value);
  if (rate < 0 || rate > 1e6) return row_schema(value, "a frame rate of {}", shown(value.raw()));
  out = rate;
  return {};
}

Status refuse_file(const JsonView& at) {
  return Status(
      Reason::kMediaUnsupported,
      at.where() + ": a video file; this version reads no video files, but a clip given as a list of pictures");
}

std::string data_url(const std::string& media_type, const std::string& base64) {
  return "data:" + media_type + ";base64," + base64;
}

}  // namespace

Result<std::string> RowMedia::source_of(const JsonView& source) {
  STOKER_TRY(const auto fields, Fields<kSourceKeys.size()>::of(source, kSourceKeys));
  for (const std::string_view key : kSourceKeys) {
    if (fields[key] && !fields[key].is_string()) return row_schema(fields[key], "'{}' must be a string", key);
  }
  if (fields.has("data")) {
    return data_url(fields.has("media_type") ? fields["media_type"].string() : "", fields["data"].string());
  }
  if (fields.has("url")) return fields["url"].string(&n_replaced_);
  return row_schema(source, "a source without 'data' or 'url'");
}

// Of a string, or of an object of any of the dresses that references wear.
Result<std::string> RowMedia::reference_of(const JsonView& value) {
  if (value.is_string()) return value.string(&n_replaced_);
  if (!value.is_object()) return row_schema(value, "an image must be a string or an object, not {}", value.type_name());
  STOKER_TRY(const auto fields, Fields<kMediaKeys.size()>::of(value, kMediaKeys));
  const JsonView inner = fields.any({"image", "path", "url", "image_url"});
  if (inner && inner.is_object()) {
    STOKER_TRY(const auto deeper, Fields<kMediaKeys.size()>::of(inner, kMediaKeys));
    const JsonView url = deeper.any({"url", "path"});
    if (url && url.is_string()) return url.string(&n_replaced_);
  }
  if (inner) {
    if (!inner.is_string()) return row_schema(inner, "an image reference must be a string, not {}", inner.type_name());
    return inner.string(&n_replaced_);
  }
  if (const JsonView bare = fields["base64"]) {
    if (!bare.is_string()) return row_schema(bare, "'base64' must be a string, not {}", bare.type_name());
    return data_url("", bare.string());
  }
  if (const JsonView source = fields["source"]) {
    if (source.is_object()) return source_of(source);
    if (source.is_string()) return source.string(&n_replaced_);
    return row_schema(source, "'source' must be an object or a string, not {}", source.type_name());
  }
  return row_schema(value, "an image without 'image', 'path' or 'url'");
}

Status RowMedia::read_size(const JsonView& width, const JsonView& height, MediaRef& media) const {
  if (!width || !height) return {};
  int w = 0;
  int h = 0;
  STOKER_CHECKED(read_pixels(width, "a width", w));
  STOKER_CHECKED(read_pixels(height, "a height", h));
  if (w == 0 || h == 0) return {};
  media.width_px = w;
  media.height_px = h;
  return {};
}

// What an object says of its size, and which size it asks for.
Status RowMedia::read_wishes(const JsonView& object, MediaRef& media) const {
  STOKER_TRY(const auto fields, Fields<kMediaKeys.size()>::of(object, kMediaKeys));
  if (media.width_px == 0) STOKER_CHECKED(read_size(fields["width"], fields["height"], media));
  if (fields.has("min_pixels")) STOKER_CHECKED(read_pixels(fields["min_pixels"], "'min_pixels'", media.min_pixels));
  if (fields.has("max_pixels")) STOKER_CHECKED(read_pixels(fields["max_pixels"], "'max_pixels'", media.max_pixels));
  if (fields.has("resized_height") != fields.has("resized_width")) {
    return row_schema(object, "'resized_height' and 'resized_width' go together");
  }
  if (fields.has("resized_height")) {
    STOKER_CHECKED(read_pixels(fields["resized_height"], "'resized_height'", media.resized_height_px));
    STOKER_CHECKED(read_pixels(fields["resized_width"], "'resized_width'", media.resized_width_px));
  }
  return {};
}

Status RowMedia::read_image(const JsonView& value, bool is_base64) {
  MediaRef media;
  if (is_base64) {
    if (!value.is_string()) return row_schema(value, "a base64 image must be a string, not {}", value.type_name());
    media.reference = data_url("", value.string());
  } else {
    STOKER_TRY(media.reference, reference_of(value));
    if (value.is_object()) STOKER_CHECKED(read_wishes(value, media));
  }
  images_.refs.push_back(std::move(media));
  return {};
}

Status RowMedia::read_frames(const JsonView& frames, MediaRef& media) {
  media.kind = MediaKind::kVideo;
  for (JsonView frame = frames.first(); frame; frame = frame.next()) {
    STOKER_TRY(std::string reference, reference_of(frame));
    media.frames.push_back(std::move(reference));
  }
  if (media.frames.empty()) return row_schema(frames, "a clip without frames");
  return {};
}

// A clip of the row's list: a list of frames, or an object that holds one.
Status RowMedia::read_video(const JsonView& value) {
  MediaRef media;
  JsonView frames = value;
  if (value.is_object()) {
    STOKER_TRY(const auto clip, Fields<kClipKeys.size()>::of(value, kClipKeys));
    frames = clip["video"];
    if (!frames) return row_schema(value, "a video without 'video'");
    if (frames.is_array()) {
      STOKER_CHECKED(read_wishes(value, media));
      if (const JsonView rate = clip.any({"sample_fps", "fps"})) STOKER_CHECKED(read_rate(rate, media.frames_per_s));
      if (clip.has("raw_fps")) STOKER_CHECKED(read_rate(clip["raw_fps"], media.source_frames_per_s));
      if (clip.has("total_pixels")) {
        STOKER_CHECKED(read_pixels(clip["total_pixels"], "'total_pixels'", media.total_pixels));
      }
    }
  }
  if (frames.is_string()) return refuse_file(frames);
  if (!frames.is_array()) return row_schema(frames, "a video must be a list of pictures, not {}", frames.type_name());
  STOKER_CHECKED(read_frames(frames, media));
  videos_.refs.push_back(std::move(media));
  return {};
}

Status RowMedia::read_lists(const RowFields& row) {
  const auto given = [&](std::string_view key) { return row.has(key) && !is_empty_list(row[key]); };
  for (const std::string_view key : {"audio", "audios"}) {
    if (given(key))
      return Status(Reason::kMediaUnsupported, fmt::format("{}: the row has '{}'", row[key].where(), key));
  }
  const int n_image_keys = int{given("image")} + int{given("images")} + int{given("images_base64")};
  if (n_image_keys > 1) return Status(Reason::kRowAmbiguous, "the row has both 'image' and 'images'");
  if (given("video") && given("videos")) return Status(Reason::kRowAmbiguous, "the row has both 'video' and 'videos'");
  const bool is_base64 = given("images_base64");
  if (const JsonView images = is_base64 ? row["images_base64"] : given("image") ? row["image"] : row["images"]) {
    if (images.is_array()) {
      for (JsonView v = images.first(); v; v = v.next()) STOKER_CHECKED(read_image(v, is_base64));
    } else {
      STOKER_CHECKED(read_image(images, is_base64));
    }
    STOKER_CHECKED(read_row_sizes(row["width"], row["height"]));
  }
  if (const JsonView videos = given("video") ? row["video"] : row["videos"]) {
    if (!videos.is_array()) return read_video(videos);
    for (JsonView v = videos.first(); v; v = v.next()) STOKER_CHECKED(read_video(v));
  }
  return {};
}

Status RowMedia::read_row_sizes(const JsonView& width, const JsonView& height) {
  std::vector<MediaRef>& images = images_.refs;
  if (!width || !height || images.empty()) return {};
  if (!width.is_array() && !height.is_array()) {
    // One number says nothing about several images: their headers will.
    if (images.size() > 1 || images[0].width_px > 0) return {};
    return read_size(width, height, images[0]);
  }
  if (!width.is_array() || !height.is_array() || width.size() != images.size() || height.size() != images.size()) {
    return row_schema(width, "'width' and 'height' must be numbers or lists as long as the images ({})", images.size());
  }
  JsonView w = width.first();
  JsonView h = height.first();
  for (MediaRef& media : images) {
    if (media.width_px == 0 && !w.is_null() && !h.is_null()) STOKER_CHECKED(read_size(w, h, media));
    w = w.next();
    h = h.next();
  }
  return {};
}

void RowMedia::add(MediaRef media, Turn& turn) {
  Part part;
  part.kind = media.kind == MediaKind::kImage ? Part::Kind::kImage : Part::Kind::kVideo;
  part.media = static_cast<std::uint32_t>(sample_.media.size());
  turn.parts.push_back(std::move(part));
  sample_.media.push_back(std::move(media));
}

void RowMedia::take(List& from, const MediaRef& own, Turn& turn) {
  if (from.n_wanted < from.refs.size()) {
    MediaRef media = from.refs[from.n_wanted];
    if (media.width_px == 0) {
      media.width_px = own.width_px;
      media.height_px = own.height_px;
    }
    if (own.min_pixels > 0) media.min_pixels = own.min_pixels;
    if (own.max_pixels > 0) media.max_pixels = own.max_pixels;
    if (own.resized_height_px > 0) {
      media.resized_height_px = own.resized_height_px;
      media.resized_width_px = own.resized_width_px;
    }
    if (own.frames_per_s > 0) media.frames_per_s = own.frames_per_s;
    if (own.source_frames_per_s > 0) media.source_frames_per_s = own.source_frames_per_s;
    if (own.total_pixels > 0) media.total_pixels = own.total_pixels;
    add(std::move(media), turn);
  }
  ++from.n_wanted;
}

void RowMedia::take_image(const MediaRef& own, Turn& turn) { take(images_, own, turn); }
void RowMedia::take_video(const MediaRef& own, Turn& turn) { take(videos_, own, turn); }

Status RowMedia::read_part(const JsonView& part, MediaKind kind, Turn& turn) {
  MediaRef media;
  media.kind = kind;
  STOKER_CHECKED(read_wishes(part, media));
  if (kind == MediaKind::kImage) {
    STOKER_TRY(const auto fields, Fields<kMediaKeys.size()>::of(part, kMediaKeys));
    const JsonView own = fields.any({"image", "image_url", "url", "path", "source", "base64"});
    if (!own) {
      take_image(media, turn);
      return {};
    }
    STOKER_TRY(media.reference, reference_of(part));
    if (own.is_object()) STOKER_CHECKED(read_wishes(own, media));
    add(std::move(media), turn);
    return {};
  }
  STOKER_TRY(const auto clip, Fields<kClipKeys.size()>::of(part, kClipKeys));
  if (const JsonView rate = clip.any({"sample_fps", "fps"})) STOKER_CHECKED(read_rate(rate, media.frames_per_s));
  if (clip.has("raw_fps")) STOKER_CHECKED(read_rate(clip["raw_fps"], media.source_frames_per_s));
  if (clip.has("total_pixels")) {
    STOKER_CHECKED(read_pixels(clip["total_pixels"], "'total_pixels'", media.total_pixels));
  }
  const JsonView frames = clip.any({"video", "video_url"});
  if (!frames) {
    take_video(media, turn);
    return {};
  }
  if (!frames.is_array()) return refuse_file(frames);
  STOKER_CHECKED(read_frames(frames, media));
  add(std::move(media), turn);
  return {};
}

Status RowMedia::check_used_up() const {
  const bool fits = images_.n_wanted == images_.refs.size() && videos_.n_wanted == videos_.refs.size();
  if (fits) return {};
  std::string message;
  if (images_.n_wanted != images_.refs.size()) {
    message = fmt::format("placeholders {}, images {}", images_.n_wanted, images_.refs.size());
  }
  if (videos_.n_wanted != videos_.refs.size()) {
    message += fmt::format("{}video placeholders {}, videos {}", message.empty() ? "" : "; ", videos_.n_wanted,
                           videos_.refs.size());
  }
  return Status(Reason::kMediaCount, std::move(message));
}

}  // namespace stoker
