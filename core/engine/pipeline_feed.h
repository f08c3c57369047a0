#pragma once

#include <functional>
#include <memory>

#include "engine/feed.h"
#include "engine/late_bad.h"
#include "mem/block.h"

namespace stoker {

/// The engine of this process. Threads: one at a time, except what Feed says.
class PipelineFeed final : public Feed {
 public:
  PipelineFeed(const LoaderSettings& settings, const Dataset& dataset, std::unique_ptr<Pipeline> pipeline)
      : settings_(settings), pipeline_(std::move(pipeline)), late_(settings, dataset, settings.dp_size, "this rank") {}

  void want_step(std::int64_t step) override { pipeline_->want_step(step); }  ///< Threads: any.
  Result<std::optional<Item>> take_within(std::chrono::milliseconds timeout) override;
  bool is_at_end() const override { return pipeline_->is_at_end(); }
  LeftOver take_left_over() override;
  std::optional<Stall> stall() override;
  std::string waits_for() const override { return pipeline_->waits_for(); }
  void stop() override { pipeline_->stop(); }
  std::optional<PipelineSnapshot> snapshot() const override { return pipeline_->snapshot(); }
  BlockPool& blocks() { return pipeline_->blocks(); }

 private:
  const LoaderSettings& settings_;  // the loader's, and its dataset's: both outlive this
  const std::unique_ptr<Pipeline> pipeline_;
  LateBad late_;
};

}  // namespace stoker
