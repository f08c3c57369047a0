#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exchange/open.h"
#include "manifest/index.h"
#include "manifest/row_options.h"
#include "manifest/split.h"
#include "media/image.h"
#include "metric/metric.h"
#include "model/profile.h"
#include "model/qwen_vl/qwen_vl.h"
#include "pipeline/user_code.h"
#include "plan/chunk_order.h"
#include "plan/cost.h"
#include "plan/mixture.h"
#include "plan/order.h"
#include "plan/plan.h"
#include "source/source.h"

namespace stoker {

class HandOver;  // engine/hand_over.h

/// Whether `width` and `height` in a row are believed, or the media's header is read all the same.
enum class RowSizes : std::uint8_t { kTrust, kIgnore };
/// What happens to a picture whose object is no longer the one whose header was read, but has the same size.
enum class ChangedMedia : std::uint8_t {
  kAccept,  ///< it is used
  kSkip,    ///< its sample is a bad one, MEDIA_CHANGED
  kStop,    ///< the run ends where the sample would have been delivered
};
/// What happens to a sample that is longer than a pack.
enum class OverLong : std::uint8_t {
  kDrop,           ///< it is a bad sample, SEQ_TOO_LONG
  kTruncateTurns,  ///< whole turns go from its end, with their media, until it fits and ends with a trained turn
};
enum class BadSamplePolicy : std::uint8_t { kSkip, kStop };

/// One manifest and where its relative media lie.
struct DataSettings {
  std::string manifest;    ///< absolute path, a pattern of one (*, ?, [...]), or s3://bucket/key
  std::string media_root;  ///< empty: the manifest's folder
  RowOptions rows = {};    ///< how its rows are read
  std::uint64_t max_row_bytes = ManifestOptions{}.max_row_bytes;  ///< a longer row is a bad sample
  Share share = {};                                               ///< how often its rows come in an epoch
};

/// Decides what comes out: every member is part of the fingerprint.
struct OutputSettings {
  std::vector<DataSettings> data;
  std::string model;  ///< checkpoint folder
  std::uint64_t seed = 0;
  Shuffle shuffle = Shuffle::kRows;
  ChunkSettings chunks;                 ///< of Shuffle::kChunked
  std::optional<SplitRule> split;       ///< absent: all rows are trained on
  bool uses_held_out = false;           ///< which side of the split the run reads
  std::optional<std::uint64_t> epochs;  ///< absent: endless
  std::int64_t window_samples = 1024;   ///< positions planned together; independent of dp_size
  PackSettings pack;
  std::optional<CostModel> cost;  ///< fitted from measured times; absent: the model's
  OverLong over_long = OverLong::kDrop;
  qwen_vl::LabelRule labels;
  text::TemplateEngine template_engine = text::TemplateEngine::kAuto;
  std::optional<qwen_vl::BoxForm> box_form;  ///< absent: the model family's
  Profile profile = profiles().front();      ///< whose output is reproduced
  ImageOptions image;                        ///< what the profile says, and limits
  RowSizes row_sizes = RowSizes::kTrust;
  ChangedMedia changed_media = ChangedMedia::kAccept;
  std::shared_ptr<UserCode> user_code;  ///< null: no code but ours touches a sample
};

/// Decides how fast: never changes a batch.
struct SpeedSettings {
  int cpu_threads = 1;
  int fetch_threads = 1;
  int fetch_concurrency = 64;
  int max_fetch_concurrency = 0;  ///< FetchSettings::max_concurrency
  double hedge_share = 0.02;      ///< FetchSettings::hedge_share
  int prefetch_steps = 4;
  std::size_t memory_limit_bytes = std::size_t{4} << 30;
};

/// What happens to samples that cannot be used; changes no batch, only whether the run goes on.
struct BadSampleSettings {
  BadSamplePolicy policy = BadSamplePolicy::kSkip;
  double max_fraction = 0.01;
  std::string ledger;  ///< JSONL file, appended to
};

/// The processes of this node that get the same batches, prepared once: tensor, pipeline and context parallel peers.
struct PeerSettings {
  std::int32_t rank = 0;   ///< 0 prepares, the others read from its memory
  std::int32_t count = 1;  ///< 1: there are none
  std::string job;         ///< names the run, and its attempt, among others on the machine
};

struct LoaderSettings {
  OutputSettings output;
  text::TurnRendererFactory make_renderer;           ///< for chat templates that are not rendered natively
  std::shared_ptr<const StageClock> template_stage;  ///< what such renderers count; null: there are none
  SpeedSettings speed;
  BadSampleSettings bad_samples;
  StorageSettings storage;
  CacheSettings cache;
  FetchTimeouts timeouts;
  double outage_limit_s = 600;
  double stall_warning_s = 60;  ///< a wait for one batch that is told of; 0: never
  double stall_limit_s = 570;   ///< a wait for one batch that ends the run with DATA_STALL; 0: never
  std::string index_dir;
  ExchangeSettings exchange;  ///< how ranks tell each other what they measured
  std::int32_t dp_rank = 0;
  std::int32_t dp_size = 1;
  PeerSettings peers;
  std::shared_ptr<HandOver> hand_over;  ///< batches come from elsewhere; null: from an engine of this process
};

}  // namespace stoker
