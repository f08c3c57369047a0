#pragma once

#include <memory>
#include <string>
#include <thread>

#include "base/result.h"
#include "exchange/store.h"

namespace stoker {

/// Another library's store of strings, such as torch.distributed's: what ForeignStore needs of it. Called by one thread
/// at a time.
class KeyValues {
 public:
  virtual ~KeyValues() = default;
  /// As ValueStore::compare_set, atomic; with `expected` a text that no value has, it reads. Does not wait for a key.
  virtual Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                          const std::string& desired) = 0;
  virtual Status erase(const std::string& key) = 0;
  /// Waits for a thread that may be inside one of these.
  virtual void join(std::jthread& thread) { thread.join(); }
  virtual std::string describe() const = 0;
};

/// Values in another library's store. Its calls are made by a thread of their own, so that whoever waits here can be
/// stopped while one hangs or waits for an interpreter; the thread ends with the object, after the call that it is in.
///
/// The store cannot list its keys: each rank erases what it wrote itself.
std::unique_ptr<ValueStore> make_foreign_store(std::shared_ptr<KeyValues> values);

}  // namespace stoker
