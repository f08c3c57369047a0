#include "pipeline/plan_comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <optional>
#include <sstream>
#include <utility>

#include "base/hash.h"
#include "pipeline/fingerprints.h"

namespace stoker {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kMostRuns = 1024;  // of one job
constexpr milliseconds kMeetWait{5000};
constexpr const char* kVerdict = "verdict";
constexpr const char* kDigest = "plan";

std::string hello_name(std::int32_t rank, std::uint64_t number) { return fmt::format("hello-{}-{}", rank, number); }

// Numbers first, since names of settings may have any form.
std::string encoded(const RunFacts& f) {
  return fmt::format("{} {} {} {} {} {}", f.dp_size, f.packs_per_step, f.step, f.window, f.packs_delivered,
                     f.fingerprint);
}

std::optional<RunFacts> decoded(const std::string& text) {
  std::istringstream in(text);
  RunFacts f;
  in >> f.dp_size >> f.packs_per_step >> f.step >> f.window >> f.packs_delivered;
  if (!in) return std::nullopt;
  in.get();
  std::getline(in, f.fingerprint);
  return f;
}

/// Why two ranks cannot run together; empty if they can.
std::string difference(const RunFacts& here, const RunFacts& rank_0) {
  if (here.dp_size != rank_0.dp_size) {
    return fmt::format("dp_size is {} at one rank and {} at rank 0", here.dp_size, rank_0.dp_size);
  }
  if (here.packs_per_step != rank_0.packs_per_step) {
    return fmt::format("pack.packs_per_step is {} at one rank and {} at rank 0", here.packs_per_step,
                       rank_0.packs_per_step);
  }
  const auto names = differing_settings(here.fingerprint, rank_0.fingerprint);
  if (!names.empty()) {
    const bool is_data = names.size() == 1 && names.front() == "data";
    return fmt::format("`{}` of one rank {} not as at rank 0{}", fmt::join(names, "`, `"),
                       names.size() == 1 ? "is" : "are",
                       is_data ? ": the manifests' contents differ, perhaps an old copy on one node" : "");
  }
  return fmt::format("one rank begins at step {} and rank 0 at step {}: their states are of different checkpoints",
                     here.step, rank_0.step);
}

}  // namespace

std::string RunFacts::space(const std::string& job) const {
  Digest digest;
  digest.add(job);
  digest.add(fingerprint);
  for (const std::uint64_t value : {step, window, packs_delivered}) digest.add_int(static_cast<std::int64_t>(value));
  return digest.hex();
}

PlanComparison::PlanComparison(Exchange& exchange, const std::string& job, RunFacts facts, std::int32_t rank)
    : exchange_(exchange),
      job_(job),
      job_space_(job.empty() ? "" : "job-" + sha256_hex(job).substr(0, 32)),
      facts_(std::move(facts)),
      rank_(rank) {}

Status PlanComparison::meet(std::stop_token stop) {
  if (job_space_.empty()) return {};
  STOKER_CHECKED(tell(stop));
  return compare_with_rank_0(kMeetWait, std::move(stop));
}

Status PlanComparison::tell(std::stop_token stop) {
  const std::string mine = encoded(facts_);
  for (; n_told_ < kMostRuns;) {
    STOKER_TRY(const std::string there, exchange_.put_in(job_space_, hello_name(rank_, n_told_), mine, stop));
    ++n_told_;
    if (there == mine) return {};
  }
  return {};
}

// A job may have several loaders, say for training and for evaluation, and each is compared with that of rank 0 which
// is like it. It differs if rank 0 has begun as many and none is like this one.
Status PlanComparison::compare_with_rank_0(milliseconds wait, std::stop_token stop) {
  if (rank_ == 0 || job_space_.empty()) has_compared_ = true;
  const std::string mine = encoded(facts_);
  std::string last;
  for (std::uint64_t n = 0; !has_compared_ && n < kMostRuns; ++n) {
    STOKER_TRY(auto theirs,
               exchange_.wait_in(job_space_, hello_name(0, n), n < n_told_ ? wait : milliseconds(0), stop));
    if (theirs && *theirs == mine) has_compared_ = true;
    if (theirs) last = std::move(*theirs);
    if (theirs || has_compared_) continue;
    if (n < n_told_) return {};  // rank 0 is not so far yet
    const auto facts = decoded(last);
    if (!facts) return Status(Reason::kInternal, "rank 0 told something that this version does not know");
    return differ(facts->space(job_), difference(facts_, *facts), std::move(stop));
  }
  return {};
}

Status PlanComparison::check(std::uint64_t window, const std::string& digest, std::stop_token stop) {
  STOKER_CHECKED(compare_with_rank_0(milliseconds(0), stop));
  STOKER_TRY(const auto verdict, exchange_.wait_in(exchange_.space(), kVerdict, milliseconds(0), stop));
  if (verdict) return Status(Reason::kPlanMismatch, *verdict);
  STOKER_TRY(const std::string theirs, exchange_.put(window, kDigest, digest, stop));
  if (theirs == digest) return {};
  return differ(
      exchange_.space(),
      fmt::format("window {} was planned as {} by one rank and as {} by another, from equal settings and "
                  "manifests: media that changed while they were measured, user code that gives something else "
                  "each time, or different versions or model folders on the nodes. They met in {}",
                  window, digest, theirs, exchange_.describe()),
      std::move(stop));
}

Status PlanComparison::differ(const std::string& space, std::string why, std::stop_token stop) {
  why = "ranks do not run the same: " + why;
  // Where this outlives the job, the next one would read it.
  if (const std::string left = exchange_.left_by(space); !left.empty()) {
    why += "; once it is mended, or if it was meant, remove " + left;
  }
  auto told = exchange_.put_in(space, kVerdict, why, stop);
  if (told.ok() && space != exchange_.space())
    told = exchange_.put_in(exchange_.space(), kVerdict, why, std::move(stop));
  return Status(Reason::kPlanMismatch, std::move(why));
}

}  // namespace stoker
