#pragma once

#include <map>
#include <string>

#include "source/blocking_pool.h"

namespace stoker {

/// Objects that a test puts in place of storage: name -> bytes. Constant once a Fetcher has it.
class MemoryObjects {
 public:
  void put(std::string name, std::string bytes) { objects_.insert_or_assign(std::move(name), std::move(bytes)); }
  const std::string* find(const std::string& name) const {
    const auto it = objects_.find(name);
    return it == objects_.end() ? nullptr : &it->second;
  }

 private:
  std::map<std::string, std::string> objects_;
};

/// mem://name. The simplest source; start from it for the next one: look the object up, cut the part, copy it.
class MemorySource final : public BlockingSource {
 public:
  explicit MemorySource(std::shared_ptr<const MemoryObjects> objects) : objects_(std::move(objects)) {}
  Result<FetchedObject> read(const FetchRequest& request, const Location& at, std::stop_token stop) const override;

 private:
  const std::shared_ptr<const MemoryObjects> objects_;
};

}  // namespace stoker
