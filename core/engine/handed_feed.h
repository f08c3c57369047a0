#pragma once

#include <memory>
#include <utility>

#include "engine/feed.h"
#include "engine/hand_over.h"

namespace stoker {

/// Deliveries that somebody else brings into this process.
class HandedFeed final : public Feed {
 public:
  HandedFeed(std::shared_ptr<HandOver> hand_over, const LoaderState& start) : hand_over_(std::move(hand_over)) {
    hand_over_->start(start);
  }

  void want_step(std::int64_t step) override { hand_over_->want_step(step); }
  Result<std::optional<Item>> take_within(std::chrono::milliseconds timeout) override {
    STOKER_TRY(std::optional<peers::Delivery> delivery, hand_over_->take_within(timeout));
    if (!delivery) return std::optional<Item>();
    return std::optional<Item>(Item{std::move(*delivery), {}, {}});
  }
  bool is_at_end() const override { return hand_over_->is_at_end(); }
  LeftOver take_left_over() override { return {{}, hand_over_->take_left_over()}; }
  std::string waits_for() const override { return hand_over_->line(); }
  void end_with(const Status&) override { hand_over_->close(); }
  void stop() override { hand_over_->close(); }

 private:
  const std::shared_ptr<HandOver> hand_over_;
};

}  // namespace stoker
