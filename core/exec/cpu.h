#pragma once

#include <string>

namespace stoker {

/// CPUs that this process may use: its affinity mask, and no more than its cgroup's quota (v2 `cpu.max`, v1
/// `cpu.cfs_quota_us`) allows, rounded up. At least 1.
int usable_cpus();

/// Names the calling thread (15 characters at most) and lowers its priority, so that the trainer's own threads go
/// first. Never fails.
void become_background_thread(const std::string& name);

/// Names the calling thread likewise and blocks all signals for it: they are for the program's own threads. Never
/// fails.
void become_io_thread(const std::string& name);

/// The parsing half of usable_cpus, for tests: CPUs worth of quota in the text of a `cpu.max` file; 0 where there is no
/// limit.
double cpus_in_cgroup_v2(const std::string& cpu_max);

}  // namespace stoker
