#include "engine/data_walk.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "exec/cpu.h"
#include "exec/worker_pool.h"
#include "pipeline/sample_steps.h"

namespace stoker {

LoaderSettings each_row_once(LoaderSettings settings) {
  settings.output.shuffle = Shuffle::kNone;
  settings.output.epochs = 1;
  settings.output.window_samples = 1024;
  settings.output.split.reset();
  settings.output.uses_held_out = false;
  for (DataSettings& data : settings.output.data) data.share = {};
  return settings;
}

DataWalk::DataWalk(LoaderSettings settings, const Clock& clock)
    : settings_(std::move(settings)), clock_(clock), began_(clock.now()) {}

Status DataWalk::start(std::string thread_name, Work work) {
  STOKER_TRY(auto made, Fetcher::create(fetch_settings(settings_), clock_));
  {
    MutexLock lock(fetcher_mu_);
    fetcher_ = std::move(made);
  }
  thread_ = std::jthread([this, name = std::move(thread_name), work = std::move(work)](std::stop_token stop) {
    run(name, work, std::move(stop));
  });
  return {};
}

void DataWalk::run(const std::string& thread_name, const Work& work, std::stop_token stop) {
  become_background_thread(thread_name);
  Status status = open(stop);
  if (status.ok()) status = work(std::move(stop));
  MutexLock lock(mu_);
  status_ = std::move(status);
  lasted_s_ = to_seconds(clock_.now() - began_);
  is_done_ = true;
  changed_.notify_all();
}

Status DataWalk::open(std::stop_token stop) {
  auto say = [this](std::string_view line) {
    MutexLock lock(mu_);
    progress_ = line;
  };
  say("reading the model's folder");
  STOKER_TRY(model_, load_model(settings_));
  say("counting the rows");
  STOKER_TRY(dataset_, Dataset::open(settings_, fetcher(), std::move(stop), say));
  say("");
  return {};
}

Fetcher& DataWalk::fetcher() {
  MutexLock lock(fetcher_mu_);
  return *fetcher_;
}

void DataWalk::use_index(const std::stop_token& stop) {
  known_ = std::make_unique<KnownLengths>(settings_, *dataset_, model_, stop);
}

Status DataWalk::each_window(MeasureOptions options, const Visit& visit, std::stop_token stop) {
  WorkerPool workers(settings_.speed.cpu_threads, "stoker-cpu", clock_);
  std::stop_source walk_stop;
  const std::stop_callback pass_on(stop, [&] { walk_stop.request_stop(); });
  options.known = known_.get();
  Measurer measurer(settings_, *dataset_, model_, fetcher(), workers, std::move(options));

  const std::uint64_t n_windows = dataset_->n_windows();
  std::atomic<std::uint64_t> next_window{0};
  Mutex turn_mu;
  std::condition_variable_any turn_changed;
  std::uint64_t turn = 0;
  Status failed;
  auto walk = [&] {
    become_background_thread("stoker-walk");
    for (std::uint64_t w = next_window++; w < n_windows && !walk_stop.stop_requested(); w = next_window++) {
      auto measured = [&]() -> Result<std::shared_ptr<MeasuredWindow>> {
        STOKER_TRY(const OrderWindow places, dataset_->window(w, walk_stop.get_token()));
        return measurer.measure(places, w, walk_stop.get_token());
      }();
      MutexLock lock(turn_mu);
      turn_changed.wait(lock, walk_stop.get_token(), [&] { return turn == w; });
      if (walk_stop.stop_requested()) return;
      Result<bool> goes_on = measured.ok() ? visit(**measured) : Result<bool>(std::move(measured).status());
      if (!goes_on.ok()) failed = std::move(goes_on).status();
      if (!goes_on.ok() || !*goes_on) {
        walk_stop.request_stop();
        return;
      }
      ++turn;
      turn_changed.notify_all();
    }
  };
  {
    std::jthread other(walk);
    walk();
  }
  // Requests under way hold the measurer: they end before it does.
  if (walk_stop.stop_requested()) {
    MutexLock lock(fetcher_mu_);
    fetcher_->stop();
  }
  workers.stop();
  if (!failed.ok()) return failed;
  if (stop.stop_requested()) return {Reason::kStopped, "stopped"};
  for (std::uint32_t i = 0; i < dataset_->n_sources(); ++i) {
    STOKER_CHECKED(dataset_->manifest(i).check_unchanged());
  }
  return {};
}

Result<bool> DataWalk::wait_within(std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  changed_.wait_for(lock, timeout, [&]() STOKER_NO_ANALYSIS { return is_done_; });
  if (is_done_ && !status_.ok()) return status_;
  return is_done_;
}

std::string DataWalk::progress() const {
  MutexLock lock(mu_);
  return progress_;
}

double DataWalk::elapsed_s() const {
  MutexLock lock(mu_);
  return is_done_ ? lasted_s_ : to_seconds(clock_.now() - began_);
}

void DataWalk::stop() {
  thread_.request_stop();
  if (settings_.output.user_code) settings_.output.user_code->cancel();
  {
    MutexLock lock(fetcher_mu_);
    if (fetcher_) fetcher_->stop();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace stoker
