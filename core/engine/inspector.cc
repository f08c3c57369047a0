#include "engine/inspector.h"

#include <algorithm>
#include <utility>

#include "pipeline/sample_steps.h"
#include "plan/cost.h"

namespace stoker {
namespace {

/// As the loader measures: from the first bytes, and from more of them only where they do not suffice.
Result<Probe> probe_as_measured(std::span<const std::byte> object, std::uint64_t first_bytes,
                                const ImageLimits& limits) {
  std::uint64_t have = std::min<std::uint64_t>(first_bytes, object.size());
  for (;;) {
    auto probed = probe(object.first(have), object.size(), limits);
    if (!probed.ok() || probed->info || probed->need_end <= have) return probed;
    have = std::min<std::uint64_t>(probed->need_end, object.size());
  }
}

/// Where each token of `text` begins once placeholders are expanded, and where the last one ends.
std::vector<std::int64_t> expanded_begins(const qwen_vl::SampleText& text, const std::vector<qwen_vl::ImagePlan>& plans,
                                          std::int32_t image_pad) {
  std::vector<std::int64_t> begins;
  begins.reserve(text.ids.size() + 1);
  std::int64_t at = 0;
  std::size_t image = 0;
  for (const std::int32_t id : text.ids) {
    begins.push_back(at);
    at += id == image_pad && image < plans.size() ? plans[image++].n_tokens : 1;
  }
  begins.push_back(at);
  return begins;
}

void place(const qwen_vl::SampleText& text, const std::vector<qwen_vl::ImagePlan>& plans, std::int32_t image_pad,
           const std::vector<qwen_vl::TurnRange>& turns, const Sample& row, Prepared& out) {
  const std::vector<std::int64_t> begins = expanded_begins(text, plans, image_pad);
  for (const qwen_vl::TurnRange& turn : turns) {
    if (turn.token_end > static_cast<std::int64_t>(text.ids.size())) break;
    PreparedTurn shown{.role = {},
                       .is_assistant = turn.is_assistant,
                       .token_begin = begins[static_cast<std::size_t>(turn.token_begin)],
                       .token_end = begins[static_cast<std::size_t>(turn.token_end)]};
    if (turn.turn < row.turns.size()) shown.role = row.turns[turn.turn].role;
    out.turns.push_back(shown);
  }
  std::size_t image = 0;
  for (std::size_t i = 0; i < text.ids.size() && image < out.media.size(); ++i) {
    if (text.ids[i] != image_pad) continue;
    out.media[image].token_begin = begins[i];
    out.media[image].token_end = begins[i + 1];
    ++image;
  }
}

}  // namespace

Result<std::unique_ptr<Inspector>> Inspector::create(LoaderSettings settings) {
  STOKER_TRY(auto model, load_model(settings));
  return std::unique_ptr<Inspector>(new Inspector(std::move(settings), std::move(model)));
}

Result<std::unique_ptr<Fetcher>> Inspector::make_fetcher() const {
  return Fetcher::create({.concurrency = 4,
                          .n_threads = 1,
                          .n_file_threads = 1,
                          .outage_limit_s = settings_.outage_limit_s,
                          .timeouts = {},
                          .retry = {},
                          .storage = settings_.storage});
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

Status Inspector::prepare_media(Fetcher& fetcher, const MediaRef& reference, PreparedMedia& media, Buffer& object,
                                std::stop_token stop) const {
  const OutputSettings& output = settings_.output;
  const std::string& url = media.measured.is_inline ? reference.reference : media.measured.url;
  STOKER_TRY(FetchedObject fetched, fetcher.fetch({.url = url, .if_match = "", .stop = stop}, stop));
  object = std::move(fetched.bytes);
  media.measured.object_bytes = object.size();
  auto probed = probe_as_measured(object.bytes(), settings_.speed.probe_bytes, output.image.limits);
  if (probed.ok()) media.info = probed->info;
  if (is_size_trusted(output, reference)) {  // wrong ones are found out when the picture is decoded, as in a run
    media.measured.is_size_from_row = true;
    return plan_measured(output, *model_, {reference.height_px, reference.width_px}, media.measured);
  }
  if (!probed.ok()) return std::move(probed).status();
  if (!probed->info) return {Reason::kImgTruncated, "the header is not complete"};
  return plan_measured(output, *model_, upright_size(*probed->info, output.image), media.measured);
}

Result<Prepared> Inspector::prepare(std::string_view line, const std::string& media_root, const RowOptions& rows,
                                    bool with_pixels, std::stop_token stop) const {
  Prepared out;
  MeasuredSample sample;
  Sample row;
  RowNotes notes;
  std::vector<qwen_vl::TurnRange> turns;
  out.bad = read_sample(line, media_root, rows, settings_.output, *model_, sample, row, &notes, &turns);
  out.id = notes.id;
  if (out.bad.ok() && !sample.clips.empty()) {
    out.bad = Status(Reason::kMediaUnsupported, "a row with a clip is trained on, but cannot be shown by this version");
  }
  if (!out.bad.ok()) {
    out.bad_media = sample.bad_media;
    if (out.bad.code() != Code::kBadSample) return out.bad;
    return out;
  }
  std::unique_ptr<Fetcher> fetcher;
  if (!row.media.empty()) {
    STOKER_TRY(fetcher, make_fetcher());
  }
  std::vector<Buffer> objects(row.media.size());
  std::vector<qwen_vl::ImagePlan> plans;
  const int merge = model_->config().merge;
  for (std::size_t k = 0; k < row.media.size(); ++k) {
    PreparedMedia media{.reference = row.media[k].reference, .measured = sample.images[k], .info = {}, .bad = {}};
    media.bad = prepare_media(*fetcher, row.media[k], media, objects[k], stop);
    if (!media.bad.ok()) {
      if (media.bad.code() != Code::kBadSample) return media.bad;
      if (out.bad.ok()) out.bad = media.bad, out.bad_media = media.measured.url;
    }
    media.patch_begin = out.n_patches;
    out.n_patches += media.measured.plan.n_patches();
    sample.images[k] = media.measured;
    plans.push_back(media.measured.plan);
    if (!media.measured.is_planned()) plans.back() = {.grid_h = merge, .grid_w = merge, .n_tokens = 1};
    out.media.push_back(std::move(media));
  }
  if (out.bad.ok()) out.bad = finish_measured(settings_.output, *model_, sample);
  if (sample.images.size() < out.media.size()) {  // turns were cut away, and their media with them
    out.n_patches = out.media[sample.images.size()].patch_begin;
    out.media.erase(out.media.begin() + static_cast<std::ptrdiff_t>(sample.images.size()), out.media.end());
    plans.resize(sample.images.size());
  }
  const auto n_tokens = qwen_vl::expanded_length(sample.text, {plans, {}});
  const auto n = static_cast<std::size_t>(n_tokens);
  out.input_ids.resize(n);
  out.labels.resize(n);
  out.position_ids.resize(4 * n);
  // A media without a size stands for one token, so that what is shown has a place for it.
  qwen_vl::write_expanded(sample.text, {plans, {}}, model_->expansion(),
                          {out.input_ids.data(), out.labels.data(), out.position_ids.data(), n_tokens});
  place(sample.text, plans, model_->image_pad(), turns, row, out);
  const CostModel cost;
  out.cost = cost.language(n_tokens);
  for (const PreparedMedia& media : out.media) out.cost += cost.vision(media.measured.plan.n_patches());
  if (!with_pixels) return out;

  const std::int64_t patch_bytes = std::int64_t{3} * model_->config().patch * model_->config().patch;
  out.image_patches.resize(static_cast<std::size_t>(out.n_patches * patch_bytes));
  PatchDecoder decoder;
  for (std::size_t k = 0; k < out.media.size(); ++k) {
    PreparedMedia& media = out.media[k];
    if (!media.bad.ok()) continue;
    media.bad = decode_measured(settings_.output, *model_, media.measured, objects[k].bytes(), decoder,
                                out.image_patches.data() + media.patch_begin * patch_bytes);
    if (media.bad.ok()) continue;
    if (media.bad.code() != Code::kBadSample) return media.bad;
    if (out.bad.ok()) out.bad = media.bad, out.bad_media = media.measured.url;
  }
  return out;
}

}  // namespace stoker
