#include "engine/inspector.h"

#include <algorithm>
#include <utility>

#include "engine/data_walk.h"
#include "plan/cost.h"

namespace stoker {
namespace {

/// What takes the place of media that could not be planned: one token for each placeholder, so that what is shown has a
/// place for it.
qwen_vl::ImagePlan stand_in(int merge) { return {.grid_h = merge, .grid_w = merge, .n_tokens = 1}; }
qwen_vl::ClipPlan stand_in(int merge, std::int32_t n_pads) {
  return {.grid_t = n_pads, .grid_h = merge, .grid_w = merge, .n_pads = n_pads, .n_tokens = n_pads};
}

/// Walks the tokens of a text as placeholders expand them.
class Places {
 public:
  Places(const qwen_vl::SampleText& text, const qwen_vl::SampleMedia& media, const qwen_vl::QwenVl& model,
         Prepared& out) {
    std::size_t image = 0, clip = 0;
    std::int64_t at = 0;
    for (const std::int32_t id : text.ids) {
      begins_.push_back(at);
      const bool is_image = id == model.image_pad() && image < media.images.size();
      const bool is_clip = id == model.video_pad() && clip < media.clips.size();
      if (is_image) {
        at += media.images[image].n_tokens;
        out.images[image++].tokens = {begins_.back(), at};
      } else if (is_clip) {
        const qwen_vl::ClipPlan& plan = media.clips[clip];
        at += plan.n_tokens / plan.n_pads;
        out.clips[clip].tokens.push_back({begins_.back(), at});
        if (out.clips[clip].tokens.size() == static_cast<std::size_t>(plan.n_pads)) ++clip;
      } else {
        ++at;
      }
    }
    begins_.push_back(at);
  }

  /// Where the tokens [begin, end) of the text are.
  TokenRange operator()(std::int64_t begin, std::int64_t end) const {
    return {begins_[static_cast<std::size_t>(begin)], begins_[static_cast<std::size_t>(end)]};
  }

 private:
  std::vector<std::int64_t> begins_;
};

std::vector<PreparedBox> boxes_of(const Sample& row, std::vector<std::string> texts) {
  std::vector<PreparedBox> out;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Box& box = row.boxes[i];
    std::size_t image = 0;
    for (std::size_t m = 0; m < box.media; ++m) image += row.media[m].kind == MediaKind::kImage ? 1 : 0;
    out.push_back({.box = box, .image = image, .text = std::move(texts[i])});
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<Inspector>> Inspector::create(LoaderSettings settings) {
  STOKER_TRY(auto model, load_model(settings));
  // Any row may be asked for, by its line: whatever the run would read of it.
  return std::unique_ptr<Inspector>(new Inspector(each_row_once(std::move(settings)), std::move(model)));
}

Result<std::unique_ptr<Fetcher>> Inspector::make_fetcher() const {
  FetchSettings fetch = fetch_settings(settings_);
  fetch.concurrency = fetch.n_file_threads = 4;  // for one row
  fetch.cache = {};
  return Fetcher::create(std::move(fetch));
}

Result<Sample> Inspector::parse(std::string_view line, const RowOptions& rows, RowNotes& notes) const {
  const std::shared_ptr<UserCode>& code = settings_.output.user_code;
  if (!code || !code->has_row()) return parse_row(line, rows, &notes);
  STOKER_TRY(const std::string rewritten, code->row(line));
  return parse_row(rewritten, rows, &notes);
}

Result<FetchedObject> Inspector::fetch(const std::string& url, std::stop_token stop) const {
  STOKER_TRY(const auto fetcher, make_fetcher());
  return fetcher->fetch({.url = url, .if_match = "", .stop = stop}, stop);
}

Result<Dataset> Inspector::open_dataset(std::stop_token stop) const {
  STOKER_TRY(const auto fetcher, make_fetcher());
  return Dataset::open(settings_, *fetcher, stop, [](std::string_view) {});
}

Result<std::optional<std::uint64_t>> Inspector::row_with_id(const Manifest& manifest, std::string_view id,
                                                            std::stop_token stop) {
  std::string buffer;
  JsonDocument document;
  for (std::uint64_t row = 0; row < manifest.n_rows(); ++row) {
    if (stop.stop_requested()) return Status(Reason::kStopped, "stopped");
    const auto line = manifest.read(row, buffer);
    if (!line.ok()) continue;
    const bool may_have_it =
        line->find(id) != std::string_view::npos || line->find('\\') != std::string_view::npos;  // or it is escaped
    if (!may_have_it || !document.parse(*line).ok() || !document.root().is_object()) continue;
    for (JsonView key = document.root().first(); key; key = key.next().next()) {
      const JsonView value = key.next();
      if (!key.string_is("id")) continue;
      if (value.is_string() ? value.string_is(id) : value.raw() == id) return std::optional(row);
    }
  }
  return std::optional<std::uint64_t>();
}

Status Inspector::read_picture(Fetcher& fetcher, const PictureRef& reference, PreparedPicture& picture, Buffer& object,
                               std::stop_token stop) const {
  const OutputSettings& output = settings_.output;
  MeasuredImage& measured = picture.measured;
  const std::string& url = measured.is_inline ? *reference.reference : measured.url;
  STOKER_TRY(FetchedObject fetched, fetcher.fetch({.url = url, .if_match = "", .stop = stop}, stop));
  object = std::move(fetched.bytes);
  measured.object_bytes = object.size();
  // The whole object says what the loader's measuring finds out in steps, an orientation behind the pixels included.
  auto probed = probe(object.bytes(), object.size(), output.image.limits);
  if (probed.ok()) picture.info = probed->info;
  if (is_size_trusted(output, *reference.media)) {  // wrong ones are found out when it is decoded, as in a run
    measured.is_size_from_row = true;
    return plan_measured(output, *model_, {reference.media->height_px, reference.media->width_px}, measured);
  }
  if (!probed.ok()) return std::move(probed).status();
  if (!probed->info) return {Reason::kImgTruncated, "the header is not complete"};
  return plan_measured(output, *model_, upright_size(*probed->info, output.image), measured);
}

Status Inspector::read_pictures(const std::vector<MediaRef>& media, MeasuredSample& sample, Prepared& out,
                                Objects& objects, std::stop_token stop) const {
  const std::vector<PictureRef> pictures = pictures_of(media);
  if (pictures.empty()) return {};
  STOKER_TRY(const std::unique_ptr<Fetcher> fetcher, make_fetcher());
  std::size_t k = 0;
  auto read_next = [&](Buffer& object) -> Result<PreparedPicture> {
    PreparedPicture picture{
        .reference = *pictures[k].reference, .measured = sample.picture(k), .info = {}, .tokens = {}, .bad = {}};
    picture.bad = read_picture(*fetcher, pictures[k], picture, object, stop);
    if (!picture.bad.ok()) {
      if (picture.bad.code() != Code::kBadSample) return picture.bad;
      if (out.bad.ok()) out.bad = picture.bad, out.bad_media = picture.measured.url;
    }
    sample.picture(k++) = picture.measured;
    return picture;
  };
  for (std::size_t i = 0; i < sample.images.size(); ++i) {
    STOKER_TRY(PreparedPicture image, read_next(objects.images.emplace_back()));
    out.images.push_back(std::move(image));
  }
  for (const MeasuredClip& clip : sample.clips) {
    PreparedClip& shown = out.clips.emplace_back();
    for (std::size_t f = 0; f < clip.frames.size(); ++f) {
      STOKER_TRY(PreparedPicture frame, read_next(objects.frames.emplace_back()));
      shown.frames.push_back(std::move(frame));
    }
  }
  return {};
}

void Inspector::take_plans(const MeasuredSample& sample, Prepared& out) const {
  out.images.resize(sample.images.size());  // others went with turns that were cut away
  for (PreparedPicture& image : out.images) {
    image.patch_begin = out.n_patches;
    out.n_patches += image.measured.plan.n_patches();
  }
  out.clips.resize(sample.clips.size());
  for (std::size_t c = 0; c < out.clips.size(); ++c) {
    PreparedClip& clip = out.clips[c];
    const MeasuredClip& measured = sample.clips[c];
    for (std::size_t f = 0; f < clip.frames.size(); ++f) clip.frames[f].measured = measured.frames[f];
    clip.plan = measured.plan;
    clip.times = model_->times_of(static_cast<std::int64_t>(clip.frames.size()), measured.frames_per_s,
                                  measured.source_frames_per_s);
    clip.seconds = qwen_vl::seconds_of_patches(clip.times, model_->config().temporal_patch);
    clip.patch_begin = out.n_video_patches;
    out.n_video_patches += clip.plan.n_patches();
  }
}

void Inspector::write_tokens(const MeasuredSample& sample, const Sample& row,
                             const std::vector<qwen_vl::TurnRange>& turns, Prepared& out) const {
  const int merge = model_->config().merge;
  std::vector<qwen_vl::ImagePlan> plans;
  for (const MeasuredImage& image : sample.images) plans.push_back(image.is_planned() ? image.plan : stand_in(merge));
  std::vector<qwen_vl::ClipPlan> clips;
  for (const MeasuredClip& clip : sample.clips) {
    const auto n_frames = static_cast<std::int64_t>(clip.frames.size());
    clips.push_back(clip.is_planned() ? clip.plan : stand_in(merge, model_->clip_pads(n_frames)));
  }
  const qwen_vl::SampleMedia media{plans, clips};
  const auto n_tokens = qwen_vl::expanded_length(sample.text, media);
  const auto n = static_cast<std::size_t>(n_tokens);
  out.input_ids.resize(n);
  out.labels.resize(n);
  out.position_ids.resize(4 * n);
  if (model_->has_loss_weights()) out.loss_weights.resize(n);
  qwen_vl::write_expanded(sample.text, media, model_->expansion(),
                          {out.input_ids.data(), out.labels.data(), out.position_ids.data(), n_tokens,
                           model_->has_loss_weights() ? out.loss_weights.data() : nullptr});
  const Places places(sample.text, media, *model_, out);
  for (const qwen_vl::TurnRange& turn : turns) {
    if (turn.token_end > static_cast<std::int64_t>(sample.text.ids.size())) break;
    PreparedTurn shown{
        .role = {}, .is_assistant = turn.is_assistant, .tokens = places(turn.token_begin, turn.token_end)};
    if (turn.turn < row.turns.size()) shown.role = row.turns[turn.turn].role;
    out.turns.push_back(shown);
  }
  const CostModel cost = model_->cost().value_or(CostModel{});  // FLOPs, whatever planning takes
  out.cost = cost.language(n_tokens);
  for (const MeasuredImage& image : sample.images) out.cost += cost.vision(image.plan.n_patches());
  for (const MeasuredClip& clip : sample.clips)
    out.cost += clip.plan.grid_t * cost.vision(clip.plan.patches_per_time());
}

Status Inspector::decode(const MeasuredSample& sample, const Objects& objects, Prepared& out) const {
  const qwen_vl::ProcessorConfig& config = model_->config();
  const PackShape shape{.patch = config.patch, .temporal_patch = config.temporal_patch};
  out.image_patches.resize(static_cast<std::size_t>(out.n_patches * shape.patch_bytes()));
  out.video_patches.resize(static_cast<std::size_t>(out.n_video_patches * shape.clip_patch_bytes()));
  PatchDecoder decoder;
  std::vector<std::uint8_t> scratch;
  auto noted = [&](Status status, PreparedPicture& picture) -> Status {
    picture.bad = std::move(status);
    if (picture.bad.ok() || picture.bad.code() != Code::kBadSample) return picture.bad;
    if (out.bad.ok()) out.bad = picture.bad, out.bad_media = picture.measured.url;
    return {};
  };
  for (std::size_t k = 0; k < out.images.size(); ++k) {
    PreparedPicture& image = out.images[k];
    if (!image.bad.ok()) continue;
    STOKER_CHECKED(noted(decode_measured(settings_.output, *model_, image.measured, objects.images[k].bytes(), decoder,
                                         out.image_patches.data() + image.patch_begin * shape.patch_bytes()),
                         image));
  }
  auto object = objects.frames.begin();
  for (std::size_t c = 0; c < out.clips.size(); ++c) {
    PreparedClip& clip = out.clips[c];
    std::uint8_t* const patches = out.video_patches.data() + clip.patch_begin * shape.clip_patch_bytes();
    for (std::size_t f = 0; f < clip.frames.size(); ++f, ++object) {
      if (!clip.is_planned()) continue;
      STOKER_CHECKED(
          noted(decode_frame(settings_.output, *model_, sample.clips[c], f, object->bytes(), decoder, scratch, patches),
                clip.frames[f]));
    }
  }
  return {};
}

Result<Prepared> Inspector::prepare(std::string_view line, const std::string& media_root, const RowOptions& rows,
                                    bool with_pixels, std::stop_token stop) const {
  Prepared out;
  MeasuredSample sample;
  Sample row;
  RowNotes notes;
  ShownText shown;
  out.bad = read_sample(line, media_root, rows, settings_.output, *model_, sample, row, &notes, &shown);
  out.id = notes.id;
  if (!out.bad.ok()) {
    out.bad_media = sample.bad_media;
    if (out.bad.code() != Code::kBadSample) return out.bad;
    return out;
  }
  Objects objects;
  STOKER_CHECKED(read_pictures(row.media, sample, out, objects, stop));
  if (out.bad.ok()) {
    out.bad = finish_measured(settings_.output, *model_, sample, &shown);
    out.bad_media = sample.bad_media;
    if (!out.bad.ok() && out.bad.code() != Code::kBadSample) return out.bad;
  } else {
    static_cast<void>(finish_text(*model_, sample, &shown));  // what is bad is known; the text is for looking at
  }
  if (sample.text.ids.empty()) return out;  // the row's boxes have no place in it
  take_plans(sample, out);
  write_tokens(sample, row, shown.turns, out);
  out.boxes = boxes_of(row, std::move(shown.boxes));
  if (with_pixels) STOKER_CHECKED(decode(sample, objects, out));
  return out;
}

}  // namespace stoker
