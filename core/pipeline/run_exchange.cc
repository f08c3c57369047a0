#include "pipeline/run_exchange.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <iterator>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "data/lengths.h"
#include "pipeline/lengths_steps.h"

namespace stoker {
namespace {

/// Lengths of a share as another rank told them. @return nothing if they are not of these places.
std::optional<std::vector<SampleLengths>> told_of(std::span<const OrderWindow::Place> places,
                                                  const std::string& value) {
  auto lengths = decode_lengths(value);
  if (!lengths.ok() || lengths->size() != places.size()) return std::nullopt;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if ((*lengths)[i].order_index != places[i].order_index) return std::nullopt;
  }
  return std::move(*lengths);
}

}  // namespace

std::string headers_refused(const LoaderSettings& settings) {
  if (settings.dp_size == 1 || settings.exchange.kind != ExchangeKind::kNone) return "";
  return fmt::format(
      "`exchange: none` needs rows that say the height and width of every picture. This one's header "
      "would be read by all {} ranks: let them share it (`exchange: auto`), or write the sizes into the "
      "rows",
      settings.dp_size);
}

RunExchange::RunExchange(const LoaderSettings& settings, std::string fingerprint, const PlanState& start,
                         const Clock& clock)
    : settings_(settings),
      facts_{.fingerprint = std::move(fingerprint),
             .dp_size = settings.dp_size,
             .packs_per_step = settings.output.pack.packs_per_step,
             .step = start.step,
             .window = start.window,
             .packs_delivered = start.packs_delivered},
      clock_(clock) {}

Status RunExchange::open(std::stop_token stop) {
  if (settings_.dp_size == 1 || settings_.exchange.kind == ExchangeKind::kNone) return {};
  const auto meet_limit = std::chrono::milliseconds(static_cast<std::int64_t>(settings_.outage_limit_s * 1e3));
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  const std::string owner =
      fmt::format("rank {} of {} on {}", settings_.dp_rank, settings_.dp_size, std::string_view(host));
  STOKER_TRY(open_, open_exchange(settings_.exchange, settings_.index_dir, facts_.space(settings_.exchange.job), owner,
                                  meet_limit, clock_));
  sharing_.emplace(*open_.exchange, SharingOptions{.rank = settings_.dp_rank, .n_ranks = settings_.dp_size}, clock_);
  comparison_.emplace(*open_.exchange, settings_.exchange.job, facts_, settings_.dp_rank);
  Status met = comparison_->meet(std::move(stop));
  return met.reason() == Reason::kFetchConnect ? Status() : met;
}

Result<std::shared_ptr<MeasuredWindow>> RunExchange::measure(Measurer& measurer, const OrderWindow& window,
                                                             std::uint64_t priority, std::stop_token stop) {
  if (!sharing_) return measurer.measure(window, priority, std::move(stop));
  using Places = std::span<const OrderWindow::Place>;
  const auto places_of = [&](const MeasureShare& share) { return Places(window.places).subspan(share.first, share.n); };
  std::map<std::uint64_t, std::vector<MeasuredSample>> here;  // by a share's first place
  std::vector<MeasuredSample> own;
  std::vector<SampleLengths> told;
  const auto measure_shares = [&](std::span<const MeasureShare> shares,
                                  std::stop_token enough) -> Result<std::vector<std::string>> {
    std::vector<OrderWindow::Place> places;
    for (const MeasureShare& share : shares) {
      const Places more = places_of(share);
      places.insert(places.end(), more.begin(), more.end());
    }
    STOKER_TRY(std::vector<MeasuredSample> samples, measurer.measure_part(places, priority, std::move(enough)));
    std::vector<std::string> values;
    auto next = std::make_move_iterator(samples.begin());
    for (const MeasureShare& share : shares) {
      std::vector<MeasuredSample> part(next, next + static_cast<std::ptrdiff_t>(share.n));
      next += static_cast<std::ptrdiff_t>(share.n);
      std::vector<SampleLengths> lengths;
      for (const MeasuredSample& sample : part) lengths.push_back(lengths_of(sample));
      values.push_back(encode_lengths(lengths));
      here[share.first] = std::move(part);
    }
    return values;
  };
  const auto take = [&](const MeasureShare& share, const std::string& value, bool is_own) {
    if (is_own) {
      auto& samples = here[share.first];
      own.insert(own.end(), std::make_move_iterator(samples.begin()), std::make_move_iterator(samples.end()));
      return true;
    }
    auto lengths = told_of(places_of(share), value);
    if (!lengths) return false;
    told.insert(told.end(), std::make_move_iterator(lengths->begin()), std::make_move_iterator(lengths->end()));
    return true;
  };
  STOKER_CHECKED(sharing_->window(window.window, window.places.size(), measure_shares, take, std::move(stop)));
  return measurer.assemble(window, std::move(own), told);
}

Status RunExchange::check(std::uint64_t window, const std::string& digest, std::stop_token stop) {
  if (!comparison_ || sharing_->is_alone()) return {};
  Status status = comparison_->check(window, digest, std::move(stop));
  return status.reason() == Reason::kFetchConnect ? Status() : status;
}

void RunExchange::handed_on(std::uint64_t step, std::uint64_t window, std::uint64_t n_steps_apart,
                            std::stop_token stop) {
  if (!sharing_) return;
  steps_.emplace_back(step, window);
  while (steps_.size() > 1 && steps_.front().first + n_steps_apart < step) steps_.pop_front();
  const std::uint64_t needed = steps_.front().second;
  if (needed <= dropped_before_ || sharing_->is_alone()) return;
  // What is not dropped now is dropped with the next one, or goes with the job.
  if (open_.exchange->drop_before(needed, std::move(stop)).ok()) dropped_before_ = needed;
}

void RunExchange::close() {
  comparison_.reset();
  sharing_.reset();
  open_ = {};
}

}  // namespace stoker
