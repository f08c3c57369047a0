#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace stoker::text {

/// Allocates for tables that are read at random places: on huge pages where the system gives them, because a look-up in
/// a table of small pages pays for the page's address before it pays for the entry.
template <typename T>
struct HugePages {
  using value_type = T;
  HugePages() = default;
  template <typename U>
  HugePages(const HugePages<U>&) {}  // NOLINT(google-explicit-constructor): the standard's allocator form

  T* allocate(std::size_t n) {
    constexpr std::size_t kHuge = std::size_t{2} << 20;
    constexpr std::size_t kLine = 64;
    const std::size_t alignment = n * sizeof(T) >= kHuge / 2 ? kHuge : kLine;
    const std::size_t n_bytes = (n * sizeof(T) + alignment - 1) / alignment * alignment;
    void* const p = std::aligned_alloc(alignment, n_bytes);
    if (p == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    if (alignment == kHuge) (void)madvise(p, n_bytes, MADV_HUGEPAGE);  // a wish: small pages work too
#endif
    return static_cast<T*>(p);
  }
  void deallocate(T* p, std::size_t) { std::free(p); }
  friend bool operator==(const HugePages&, const HugePages&) { return true; }
};

template <typename T>
using HugeVector = std::vector<T, HugePages<T>>;

}  // namespace stoker::text
