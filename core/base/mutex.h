#pragma once

#include <condition_variable>
#include <mutex>

// Clang's thread-safety analysis reports an unlocked access that GCC compiles and a lucky ThreadSanitizer run misses.
#if defined(__clang__)
#define STOKER_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define STOKER_THREAD_ANNOTATION(x)
#endif
#define STOKER_CAPABILITY(x) STOKER_THREAD_ANNOTATION(capability(x))
#define STOKER_SCOPED_CAPABILITY STOKER_THREAD_ANNOTATION(scoped_lockable)
#define STOKER_GUARDED_BY(x) STOKER_THREAD_ANNOTATION(guarded_by(x))
#define STOKER_REQUIRES(...) STOKER_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define STOKER_ACQUIRE(...) STOKER_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define STOKER_RELEASE(...) STOKER_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define STOKER_EXCLUDES(...) STOKER_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define STOKER_NO_ANALYSIS STOKER_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace stoker {

/// std::mutex with the attribute that the analysis needs.
class STOKER_CAPABILITY("mutex") Mutex {
 public:
  void lock() STOKER_ACQUIRE() { mu_.lock(); }
  void unlock() STOKER_RELEASE() { mu_.unlock(); }

 private:
  std::mutex mu_;
};

/// Holds a Mutex for a scope; usable with std::condition_variable_any, which unlocks and locks it again while waiting.
class STOKER_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mu) STOKER_ACQUIRE(mu) : mu_(mu) { mu_.lock(); }
  ~MutexLock() STOKER_RELEASE() { mu_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() STOKER_NO_ANALYSIS { mu_.lock(); }      ///< For condition_variable_any only.
  void unlock() STOKER_NO_ANALYSIS { mu_.unlock(); }  ///< For condition_variable_any only.

 private:
  Mutex& mu_;
};

}  // namespace stoker
