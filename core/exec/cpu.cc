#include "exec/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <sstream>

namespace stoker {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The process's own folder below the cgroup mount, "" when it cannot be told; inside a container it usually is "/".
std::string cgroup_v2_folder() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) return line.substr(3);
  }
  return "";
}

double quota_cpus() {
  double least = 0;
  std::string folder = cgroup_v2_folder();
  for (;;) {  // a limit on any ancestor binds
    const double here = cpus_in_cgroup_v2(first_line("/sys/fs/cgroup" + folder + "/cpu.max"));
    if (here > 0 && (least == 0 || here < least)) least = here;
    if (folder.empty() || folder == "/") break;
    folder.resize(folder.rfind('/'));
  }
  if (least > 0) return least;
  const std::string quota = first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const std::string period = first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  return quota.empty() || period.empty() || quota[0] == '-' ? 0 : cpus_in_cgroup_v2(quota + " " + period);
}

}  // namespace

double cpus_in_cgroup_v2(const std::string& cpu_max) {
  std::istringstream in(cpu_max);
  double quota = 0;
  double period = 0;
  if (!(in >> quota >> period) || period <= 0 || quota <= 0) return 0;  // "max 100000" does not parse as a number
  return quota / period;
}

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int n =
      sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const double quota = quota_cpus();
  if (quota > 0) n = std::min(n, static_cast<int>(std::ceil(quota)));
  return std::max(n, 1);
}

void become_io_thread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

void become_background_thread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  // On Linux the nice value belongs to the thread. 5 leaves the trainer's threads about three times our share on a full
  // machine.
  const auto tid = static_cast<id_t>(syscall(SYS_gettid));
  (void)setpriority(PRIO_PROCESS, tid, 5);
}

}  // namespace stoker
