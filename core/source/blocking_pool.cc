#include "source/blocking_pool.h"

#include <condition_variable>
#include <exception>
#include <new>

#include "base/mutex.h"
#include "exec/cpu.h"

namespace stoker {

struct BlockingPool::Thread {
  Mutex mu;
  std::condition_variable_any woken;
  bool is_woken STOKER_GUARDED_BY(mu) = false;
  std::thread thread;

  void wake() {
    MutexLock lock(mu);
    is_woken = true;
    woken.notify_one();
  }
  // Until woken, or for `limit`. Spurious returns are harmless: the caller looks for work and comes back.
  void wait(Nanos limit) {
    MutexLock lock(mu);
    if (!is_woken) {
      if (limit == Nanos::max()) {
        woken.wait(lock);
      } else {
        woken.wait_for(lock, limit);
      }
    }
    is_woken = false;
  }
};

BlockingPool::BlockingPool(JobOwner& owner, const BlockingSource& files, const BlockingSource& memory,
                           const BlockingSource& data, const Clock& clock)
    : owner_(owner), files_(files), memory_(memory), data_(data), clock_(clock) {}

BlockingPool::~BlockingPool() { stop(); }

std::function<void()> BlockingPool::add_thread() {
  threads_.push_back(std::make_unique<Thread>());
  return [thread = threads_.back().get()] { thread->wake(); };
}

void BlockingPool::start() {
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    Thread& me = *threads_[i];
    me.thread = std::thread([this, &me, i] {
      become_io_thread("stoker-file");
      run(me, static_cast<int>(i));
    });
  }
}

void BlockingPool::stop() {
  stop_.request_stop();
  for (auto& one : threads_) {
    one->wake();
    if (one->thread.joinable()) one->thread.join();
  }
}

void BlockingPool::run(Thread& me, int worker) {
  const std::stop_token stop = stop_.get_token();
  while (!stop.stop_requested()) {
    const Nanos now = clock_.now();
    Nanos look_again = Nanos::max();
    std::unique_ptr<Job> job = owner_.take(worker, now, look_again);
    if (!job) {
      me.wait(look_again == Nanos::max() ? look_again : std::max(Nanos(0), look_again - now));
      continue;
    }
    Outcome outcome;
    if (job->request.stop.stop_requested()) {
      outcome.status = Status(Reason::kStopped, "no longer wanted");
    } else {
      const BlockingSource& source = job->at.kind == Location::Kind::kMemory ? memory_
                                     : job->at.kind == Location::Kind::kData ? data_
                                                                             : files_;
      try {
        Result<FetchedObject> object = source.read(job->request, job->at, stop);
        if (object.ok()) {
          outcome.object = std::move(object).value();
        } else {
          outcome.status = std::move(object).status();
        }
      } catch (const std::bad_alloc&) {
        outcome.status = Status(Reason::kBudget, job->at.shown() + ": no memory for it");
      }
    }
    outcome.took = clock_.now() - now;
    owner_.settle(worker, std::move(job), std::move(outcome));
  }
}

}  // namespace stoker
