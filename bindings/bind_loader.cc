#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/log.h"
#include "bind.h"
#include "engine/hand_over.h"
#include "engine/loader.h"
#include "exec/cpu.h"
#include "key_source.h"
#include "key_values.h"
#include "pack_options.h"
#include "pipeline_dict.h"
#include "text_options.h"
#include "user_code.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace stoker {
namespace {

using AnyArray = nb::ndarray<nb::numpy, nb::device::cpu>;  // whose __dlpack__ any library takes

/// A DLPack view of one array of a batch; it keeps the memory that it lies in alive.
template <typename T>
AnyArray view_of(const Batch& batch, std::size_t offset, std::initializer_list<std::size_t> shape) {
  auto* keep = new std::shared_ptr<const Block>(batch.block_at(offset));
  nb::capsule owner(keep, [](void* p) noexcept { delete static_cast<std::shared_ptr<const Block>*>(p); });
  // DLPack has no const for torch; documented as not to be written.
  auto* data = const_cast<std::byte*>(batch.at(offset));
  return AnyArray(data, shape, owner, {}, nb::dtype<T>());
}

AnyArray batch_array(const Batch& batch, const std::string& name) {
  const PackLayout at = batch.layout();
  const auto n = [](std::int64_t x) { return static_cast<std::size_t>(x); };
  const PackShape& s = batch.shape;
  if (name == "input_ids") return view_of<std::int64_t>(batch, at.input_ids, {n(s.tokens)});
  if (name == "labels") return view_of<std::int64_t>(batch, at.labels, {n(s.tokens)});
  if (name == "loss_weights" && s.has_loss_weights) return view_of<float>(batch, at.loss_weights, {n(s.tokens)});
  if (name == "position_ids") return view_of<std::int64_t>(batch, at.position_ids, {4, n(s.tokens)});
  if (name == "image_patches")
    return view_of<std::uint8_t>(batch, at.image_patches, {n(s.patches), 3, n(s.patch), n(s.patch)});
  if (name == "video_patches") {
    return view_of<std::uint8_t>(batch, at.video_patches,
                                 {n(s.clip_patches), 3, n(s.temporal_patch), n(s.patch), n(s.patch)});
  }
  if (name == "video_grid_thw") return view_of<std::int64_t>(batch, at.video_grid_thw, {n(s.clips), 3});
  if (name == "video_counts") return view_of<std::int32_t>(batch, at.video_counts, {n(s.samples)});
  if (name == "image_grid_thw") return view_of<std::int64_t>(batch, at.image_grid_thw, {n(s.images), 3});
  if (name == "cu_seqlens") return view_of<std::int32_t>(batch, at.cu_seqlens, {n(s.samples + 1)});
  if (name == "cu_seqlens_padded") return view_of<std::int32_t>(batch, at.cu_seqlens_padded, {n(s.samples + 1)});
  if (name == "sample_ids") return view_of<std::int64_t>(batch, at.sample_ids, {n(s.samples)});
  if (name == "image_counts") return view_of<std::int32_t>(batch, at.image_counts, {n(s.samples)});
  throw nb::key_error(name.c_str());
}

Share::Kind share_named(const std::string& name) {
  if (name == "once") return Share::Kind::kOnce;
  if (name == "repeat") return Share::Kind::kRepeat;
  if (name == "samples") return Share::Kind::kSamples;
  if (name == "weight") return Share::Kind::kWeight;
  throw nb::value_error("share: once, repeat, samples or weight");
}

ExchangeKind exchange_named(const std::string& name) {
  if (name == "none") return ExchangeKind::kNone;
  if (name == "dir") return ExchangeKind::kDir;
  if (name == "tcp") return ExchangeKind::kTcp;
  if (name == "torch") return ExchangeKind::kForeign;
  throw nb::value_error("exchange: none, dir, tcp or torch");
}

void bind_settings(nb::module_& m) {
  nb::class_<LoaderSettings>(m, "LoaderSettings")
      .def(nb::init<>())
      .def(
          "add_data",
          [](LoaderSettings& s, std::string manifest, std::string media_root, const std::string& shape,
             const std::map<std::string, std::string>& columns, const std::map<std::string, std::string>& roles,
             bool nonfinite_is_null, std::uint64_t max_row_bytes, const std::string& share, std::uint64_t share_value) {
            RowOptions rows = value_or_throw(make_row_options(shape, {columns.begin(), columns.end()},
                                                              {roles.begin(), roles.end()}, nonfinite_is_null));
            s.output.data.push_back({std::move(manifest),
                                     std::move(media_root),
                                     std::move(rows),
                                     max_row_bytes,
                                     {share_named(share), share_value}});
          },
          nb::kw_only(), "manifest"_a, "media_root"_a = "", "shape"_a = "auto",
          "columns"_a = std::map<std::string, std::string>(), "roles"_a = std::map<std::string, std::string>(),
          "nonfinite_is_null"_a = false, "max_row_bytes"_a = ManifestOptions{}.max_row_bytes, "share"_a = "once",
          "share_value"_a = 1)
      .def_rw("dp_rank", &LoaderSettings::dp_rank)
      .def_rw("dp_size", &LoaderSettings::dp_size)
      .def(
          "set_peers",
          [](LoaderSettings& s, std::int32_t rank, std::int32_t count, std::string job) {
            s.peers = {rank, count, std::move(job)};
          },
          nb::kw_only(), "rank"_a, "count"_a, "job"_a, "The processes of this node that get the same batches.")
      .def_rw("index_dir", &LoaderSettings::index_dir)
      .def_rw("outage_limit_s", &LoaderSettings::outage_limit_s)
      .def_rw("stall_warning_s", &LoaderSettings::stall_warning_s)
      .def_rw("stall_limit_s", &LoaderSettings::stall_limit_s)
      .def(
          "set_hand_over",
          [](LoaderSettings& s, std::shared_ptr<HandOver> hand_over) { s.hand_over = std::move(hand_over); },
          "hand_over"_a, "Batches are put in from outside; nothing is opened, fetched or prepared here.")
      .def(
          "set_exchange",
          [](LoaderSettings& s, const std::string& kind, std::string job, std::string host, std::uint16_t port,
             bool is_host, std::string secret, std::optional<nb::object> store) {
            s.exchange = {.kind = exchange_named(kind),
                          .job = std::move(job),
                          .host = std::move(host),
                          .port = port,
                          .is_host = is_host,
                          .secret = std::move(secret),
                          .values = store ? make_key_values(std::move(*store)) : nullptr};
          },
          nb::kw_only(), "kind"_a, "job"_a = "", "host"_a = "", "port"_a = 0, "is_host"_a = false, "secret"_a = "",
          "store"_a = nb::none(), "How ranks tell each other what they measured; see stoker.exchange.")
      .def(
          "set_output",
          [](LoaderSettings& s, std::string model, std::uint64_t seed, bool is_shuffled,
             std::optional<std::uint64_t> epochs, std::int64_t window_samples, const std::string& reference,
             std::string exif, std::string alpha, std::string grey16, std::string content_tokens, bool trusts_row_sizes,
             const std::string& changed_media, std::int64_t max_pixels, int max_scans, bool allow_missing_eoi,
             bool allow_truncated) {
            OutputSettings& o = s.output;
            o.model = std::move(model);
            o.seed = seed;
            o.shuffle = is_shuffled ? Shuffle::kRows : Shuffle::kNone;
            o.epochs = epochs;
            o.window_samples = window_samples;
            o.profile = value_or_throw(resolve_profile(
                reference, {std::move(exif), std::move(alpha), std::move(grey16), std::move(content_tokens)}));
            o.row_sizes = trusts_row_sizes ? RowSizes::kTrust : RowSizes::kIgnore;
            o.changed_media = changed_media == "stop"   ? ChangedMedia::kStop
                              : changed_media == "skip" ? ChangedMedia::kSkip
                                                        : ChangedMedia::kAccept;
            o.image = {.is_exif_applied = o.profile.is_exif_applied,
                       .resizer = o.profile.image_resize,
                       .alpha = o.profile.alpha,
                       .grey16 = o.profile.grey16,
                       .is_end_optional = allow_missing_eoi,
                       .is_truncated_used = allow_truncated,
                       .limits = {.max_pixels = max_pixels, .max_scans = max_scans}};
          },
          nb::kw_only(), "model"_a, "seed"_a, "is_shuffled"_a, "epochs"_a.none(), "window_samples"_a, "reference"_a,
          "exif"_a, "alpha"_a, "grey16"_a, "content_tokens"_a, "trusts_row_sizes"_a, "changed_media"_a, "max_pixels"_a,
          "max_scans"_a, "allow_missing_eoi"_a = false, "allow_truncated"_a = false)
      .def(
          "set_pack",
          [](LoaderSettings& s, const nb::dict& values, std::optional<std::array<std::int64_t, 4>> cost) {
            s.output.pack = pack_settings_of(values);
            s.output.cost.reset();
            if (!cost) return;
            s.output.cost = CostModel{(*cost)[0], (*cost)[1], (*cost)[2], (*cost)[3]};
            check_or_throw(check_cost(*s.output.cost));
          },
          "values"_a, nb::kw_only(), "cost"_a = nb::none(),
          "values: by the names of settings.Pack.core_values. cost: (language per token, per token^2, vision per "
          "patch, "
          "per patch^2), or None to take the model's.")
      .def(
          "set_chunked",
          [](LoaderSettings& s, std::uint64_t chunk_bytes, std::uint64_t chunks_per_group) {
            s.output.shuffle = Shuffle::kChunked;
            s.output.chunks = {chunk_bytes, chunks_per_group};
          },
          nb::kw_only(), "chunk_bytes"_a, "chunks_per_group"_a)
      .def(
          "set_split",
          [](LoaderSettings& s, std::string key, std::uint64_t held_out_millionths, bool uses_held_out) {
            s.output.split = SplitRule{std::move(key), held_out_millionths};
            s.output.uses_held_out = uses_held_out;
          },
          nb::kw_only(), "key"_a, "held_out_millionths"_a, "uses_held_out"_a)
      .def(
          "set_text",
          [](LoaderSettings& s, const std::string& train_on, const std::vector<std::string>& roles,
             const std::string& end_of_turn, const std::string& weights, const std::string& box_text,
             const std::string& template_engine, bool truncates_turns, nb::callable make_renderer) {
            OutputSettings& o = s.output;
            o.labels = label_rule(train_on, roles, end_of_turn, weights);
            o.box_form = box_form_named(box_text);
            o.template_engine = template_engine_named(template_engine);
            o.over_long = truncates_turns ? OverLong::kTruncateTurns : OverLong::kDrop;
            auto stage = std::make_shared<StageClock>();
            s.template_stage = stage;
            s.make_renderer = python_renderers(std::move(make_renderer), std::move(stage));
          },
          nb::kw_only(), "train_on"_a, "roles"_a, "end_of_turn"_a, "weights"_a, "box_text"_a, "template_engine"_a,
          "truncates_turns"_a, "make_renderer"_a,
          "What is trained, and who renders chat templates: `make_renderer(text, folder)` is called for those that the "
          "engine does not know.")
      .def(
          "set_speed",
          [](LoaderSettings& s, int cpu_threads, int fetch_threads, int fetch_concurrency, int max_fetch_concurrency,
             double hedge_share, int prefetch_steps, std::size_t memory_limit_bytes) {
            s.speed.cpu_threads = cpu_threads;
            s.speed.fetch_threads = fetch_threads;
            s.speed.fetch_concurrency = fetch_concurrency;
            s.speed.max_fetch_concurrency = max_fetch_concurrency;
            s.speed.hedge_share = hedge_share;
            s.speed.prefetch_steps = prefetch_steps;
            s.speed.memory_limit_bytes = memory_limit_bytes;
          },
          nb::kw_only(), "cpu_threads"_a, "fetch_threads"_a, "fetch_concurrency"_a, "max_fetch_concurrency"_a,
          "hedge_share"_a, "prefetch_steps"_a, "memory_limit_bytes"_a)
      .def(
          "set_bad_samples",
          [](LoaderSettings& s, bool is_stop, double max_fraction, std::string ledger) {
            s.bad_samples = {is_stop ? BadSamplePolicy::kStop : BadSamplePolicy::kSkip, max_fraction,
                             std::move(ledger)};
          },
          nb::kw_only(), "is_stop"_a, "max_fraction"_a, "ledger"_a)
      .def(
          "set_cache",
          [](LoaderSettings& s, std::string dir, std::uint64_t limit_bytes, bool is_validated) {
            s.cache = {.dir = std::move(dir), .limit_bytes = limit_bytes, .is_validated = is_validated};
          },
          nb::kw_only(), "dir"_a, "limit_bytes"_a, "is_validated"_a)
      .def(
          "set_user_code",
          [](LoaderSettings& s, std::string identity, nb::object row, nb::object size, nb::object picture) {
            s.output.user_code =
                make_user_code(std::move(identity), std::move(row), std::move(size), std::move(picture));
          },
          nb::kw_only(), "identity"_a, "row"_a.none(), "size"_a.none(), "picture"_a.none())
      .def(
          "set_storage",
          [](LoaderSettings& s, std::string endpoint, std::string region, const std::string& addressing,
             std::string access_key_id, std::string secret_access_key, std::string session_token, std::string profile,
             bool anonymous, bool requester_pays, std::string ca_file, bool verify_tls, std::string proxy, bool http2,
             std::optional<nb::callable> key_source) {
            s.storage.endpoint = std::move(endpoint);
            s.storage.region = std::move(region);
            s.storage.addressing = addressing == "path"      ? Addressing::kPath
                                   : addressing == "virtual" ? Addressing::kVirtualHost
                                                             : Addressing::kAuto;
            s.storage.access_key_id = std::move(access_key_id);
            s.storage.secret_access_key = std::move(secret_access_key);
            s.storage.session_token = std::move(session_token);
            s.storage.profile = std::move(profile);
            s.storage.anonymous = anonymous;
            s.storage.requester_pays = requester_pays;
            s.storage.ca_file = std::move(ca_file);
            s.storage.verify_tls = verify_tls;
            s.storage.proxy = std::move(proxy);
            s.storage.http2 = http2;
            s.storage.key_source = key_source ? make_key_source(std::move(*key_source)) : nullptr;
          },
          nb::kw_only(), "endpoint"_a, "region"_a, "addressing"_a, "access_key_id"_a, "secret_access_key"_a,
          "session_token"_a, "profile"_a, "anonymous"_a, "requester_pays"_a, "ca_file"_a, "verify_tls"_a, "proxy"_a,
          "http2"_a, "key_source"_a = nb::none(),
          "`key_source(afresh, is_stopped)` finds keys that the engine does not look up itself; see "
          "stoker.credentials.")
      .def(
          "set_timeouts",
          [](LoaderSettings& s, double connect_s, double first_byte_s, double stall_s, double object_s) {
            const auto ms = [](double seconds) {
              return std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(seconds * 1e3)));
            };
            s.timeouts = {ms(connect_s), ms(first_byte_s), ms(stall_s),
                          object_s > 0 ? ms(object_s) : std::chrono::milliseconds(0)};
          },
          nb::kw_only(), "connect_s"_a, "first_byte_s"_a, "stall_s"_a, "object_s"_a,
          "How long one try may take to connect, to the first byte, without a byte, in all (0: as long as it comes).");
}

void bind_batch(nb::module_& m) {
  nb::class_<BatchCounts>(m, "BatchCounts")
      .def_ro("tokens", &BatchCounts::tokens)
      .def_ro("pad_tokens", &BatchCounts::pad_tokens)
      .def_ro("target_tokens", &BatchCounts::target_tokens)
      .def_ro("step_target_tokens", &BatchCounts::step_target_tokens)
      .def_ro("is_step_target_upper_bound", &BatchCounts::is_step_target_upper_bound)
      .def_ro("patches", &BatchCounts::patches)
      .def_ro("video_patches", &BatchCounts::video_patches)
      .def_ro("cost", &BatchCounts::cost)
      .def_ro("step", &BatchCounts::step)
      .def_ro("micro_batch", &BatchCounts::micro_batch)
      .def_ro("micro_batches_in_step", &BatchCounts::micro_batches_in_step);
  nb::class_<Batch>(m, "CoreBatch")
      .def_ro("counts", &Batch::counts)
      .def_ro("max_seqlen", &Batch::max_seqlen)
      .def_prop_ro("n_samples", [](const Batch& b) { return b.shape.samples; })
      .def_prop_ro("n_images", [](const Batch& b) { return b.shape.images; })
      .def_prop_ro("n_clips", [](const Batch& b) { return b.shape.clips; })
      .def_prop_ro("has_loss_weights", [](const Batch& b) { return b.shape.has_loss_weights; })
      .def_prop_ro("n_patches", [](const Batch& b) { return b.shape.patches; })
      .def_prop_ro("tail_tokens", [](const Batch& b) { return b.shape.tail_tokens; })
      .def_prop_ro("merge", [](const Batch& b) { return b.shape.merge; })
      .def_prop_ro("image_token_id", [](const Batch& b) { return b.shape.image_token_id; })
      .def_prop_ro("video_token_id", [](const Batch& b) { return b.shape.video_token_id; })
      .def_prop_ro("pad_token_id", [](const Batch& b) { return b.shape.pad_token_id; })
      .def("array", &batch_array, "name"_a, "A DLPack view of one array; it keeps the pack's memory alive.")
      .def(
          "digest", [](const Batch& b) { return digest_of(b); }, nb::call_guard<nb::gil_scoped_release>());
}

void bind_state(nb::module_& m) {
  nb::class_<LoaderState>(m, "LoaderState")
      .def(nb::init<>())
      .def_rw("version", &LoaderState::version)
      .def_rw("fingerprint", &LoaderState::fingerprint)
      .def_rw("dp_size", &LoaderState::dp_size)
      .def_prop_rw(
          "step", [](const LoaderState& s) { return s.cursor.step; },
          [](LoaderState& s, std::uint64_t v) { s.cursor.step = v; })
      .def_prop_rw(
          "window", [](const LoaderState& s) { return s.cursor.window; },
          [](LoaderState& s, std::uint64_t v) { s.cursor.window = v; })
      .def_prop_rw(
          "packs_delivered", [](const LoaderState& s) { return s.cursor.packs_delivered; },
          [](LoaderState& s, std::uint64_t v) { s.cursor.packs_delivered = v; })
      .def_prop_rw(
          "window_digest", [](const LoaderState& s) { return s.cursor.window_digest; },
          [](LoaderState& s, std::string v) { s.cursor.window_digest = std::move(v); });
}

nb::dict report_dict(const LoaderReport& r) {
  nb::dict d;
  d["steps_measured"] = r.wait.n_steps;
  d["wait_s"] = r.wait.wait_s;
  d["step_s"] = r.wait.step_s;
  d["wait_ratio"] = r.wait.wait_ratio();
  d["longest_wait_s"] = r.wait.longest_wait_s;
  d["first_wait_s"] = r.wait.first_wait_s;
  d["first_step_s"] = r.wait.first_step_s;
  d["steps"] = r.steps;
  d["batches"] = r.batches;
  d["samples"] = r.samples;
  d["tokens"] = r.tokens;
  d["target_tokens"] = r.target_tokens;
  d["patches"] = r.patches;
  d["bytes"] = r.bytes;
  d["fill"] = r.fill;
  d["bad_samples"] = bad_dict(r.bad);
  if (r.user_code) {
    nb::dict user_code;
    user_code["busy_s"] = r.user_code->busy_s;
    user_code["wait_s"] = r.user_code->wait_s;
    user_code["calls"] = r.user_code->n_calls;
    d["user_code"] = user_code;
  } else {
    d["user_code"] = nb::none();
  }
  d["cpu_threads"] = r.cpu_threads;
  d["fetch_concurrency"] = r.fetch_concurrency;
  d["prefetch_steps"] = r.prefetch_steps;
  d["peers"] = nb::none();
  if (r.peers) {
    nb::dict peers;
    peers["rank"] = r.peers->rank;
    peers["count"] = r.peers->count;
    peers["joined"] = r.peers->n_joined;
    peers["left"] = r.peers->n_left;
    peers["unread"] = r.peers->n_unread;
    d["peers"] = peers;
  }
  if (r.pipeline) {
    d["pipeline"] = pipeline_dict(*r.pipeline);
  } else {
    d["pipeline"] = nb::none();
  }
  return d;
}

}  // namespace

void bind_loader(nb::module_& m) {
  bind_state(m);
  bind_hand_over(m);
  bind_settings(m);
  bind_batch(m);
  m.def("usable_cpus", &usable_cpus, "CPUs that this process may use: affinity and cgroup quota.");
  m.def(
      "drain_log",
      [] {
        std::vector<std::tuple<int, std::string>> out;
        for (LogLine& line : drain_log()) out.emplace_back(static_cast<int>(line.level), std::move(line.text));
        return out;
      },
      "Log lines of the engine since the last call: [(level 0 debug .. 3 error, text)].");
  nb::class_<Loader>(m, "CoreLoader")
      .def_static(
          "create", [](const LoaderSettings& s) { return value_or_throw(Loader::create(s)); }, "settings"_a)
      .def("open_within",
           [](Loader& self, int milliseconds) {
             auto opened = [&] {
               nb::gil_scoped_release unlocked;
               return self.open_within(std::chrono::milliseconds(milliseconds));
             }();
             return value_or_throw(std::move(opened));
           })
      .def("progress", &Loader::progress)
      .def(
          "next_within",
          [](Loader& self, int milliseconds) {
            auto batch = [&] {
              nb::gil_scoped_release unlocked;  // around the C++ call only; Python objects are made after it
              return self.next_within(std::chrono::milliseconds(milliseconds));
            }();
            return value_or_throw(std::move(batch));
          },
          "The next batch, or None if none came in time; the Python side loops, so that Ctrl-C is heard.")
      .def_prop_ro("is_at_end", &Loader::is_at_end)
      .def_prop_ro("has_started", &Loader::has_started)
      .def("state",
           [](const Loader& self) {
             bool is_inside = false;
             auto state = value_or_throw(self.state(&is_inside));
             return std::make_tuple(state, is_inside);
           })
      .def("state_after",
           [](const Loader& self, std::int64_t steps) { return value_or_throw(self.state_after(steps)); })
      .def(
          "load_state",
          [](Loader& self, const LoaderState& state, const std::vector<std::string>& accepted) {
            check_or_throw(self.load_state(state, accepted));
          },
          "state"_a, "accepted"_a)
      .def("describe",
           [](const Loader& self, std::int64_t id) {
             auto described = [&] {  // may open manifests, for which storage's keys may come from Python
               nb::gil_scoped_release unlocked;
               return self.describe(id);
             }();
             const SampleOrigin o = value_or_throw(std::move(described));
             return std::make_tuple(o.pass, o.manifest, o.line, o.byte_offset, o.media);
           })
      .def("add_wait", &Loader::add_wait)
      .def("report",
           [](const Loader& self) {
             const LoaderReport report = [&] {  // close() may hold its lock while workers wait for the interpreter
               nb::gil_scoped_release unlocked;
               return self.report();
             }();
             return report_dict(report);
           })
      .def(
          "normalisation",
          [](const Loader& self) {
            const auto& p = self.pixels();
            return std::make_tuple(std::vector<double>(p.image_mean.begin(), p.image_mean.end()),
                                   std::vector<double>(p.image_std.begin(), p.image_std.end()), p.image_rescale,
                                   p.patch, p.merge, p.temporal_patch,
                                   self.settings().output.profile.image_normalise == NormaliseRule::kPil);
          },
          "(mean, std, rescale, patch, merge, temporal_patch, is_pil_backend) of the model's image processor.")
      .def(
          "clip_normalisation",
          [](const Loader& self) {
            const auto& p = self.pixels();
            return std::make_tuple(std::vector<double>(p.clip_mean.begin(), p.clip_mean.end()),
                                   std::vector<double>(p.clip_std.begin(), p.clip_std.end()), p.clip_rescale);
          },
          "(mean, std, rescale) of the model's video processor.")
      .def("close", &Loader::close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace stoker
