#pragma once

#include <atomic>
#include <memory>
#include <stop_token>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "source/job.h"

namespace stoker {

/// A kind of storage that is read by calls which block: files, memory. The small half of what a source can be; see
/// memory/ for the simplest.
class BlockingSource {
 public:
  virtual ~BlockingSource() = default;
  /// Reads the part [offset, offset + length) as far as it exists. The status's message names the object.
  /// Looks at `stop` between pieces of work of a tenth of a second.
  /// Threads: any, many at a time.
  virtual Result<FetchedObject> read(const FetchRequest& request, const Location& at, std::stop_token stop) const = 0;
};

/// A few threads that carry one job each.
class BlockingPool {
 public:
  /// Everything borrowed must outlive the pool.
  BlockingPool(JobOwner& owner, const BlockingSource& files, const BlockingSource& memory, const BlockingSource& data,
               const Clock& clock);
  ~BlockingPool();
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;

  /// Makes room for one more thread; returns how to wake it. Before `start`.
  std::function<void()> add_thread();
  void start();
  void stop();

 private:
  struct Thread;
  void run(Thread& me, int worker);

  JobOwner& owner_;
  const BlockingSource& files_;
  const BlockingSource& memory_;
  const BlockingSource& data_;
  const Clock& clock_;
  std::stop_source stop_;
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace stoker
