#include "mem/buffer_pool.h"

#include <bit>
#include <new>

namespace stoker {
namespace {

// AddressSanitizer finds what is used after its end only if it really ends.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeepsNothing = true;
#elif defined(__has_feature)
constexpr bool kKeepsNothing = __has_feature(address_sanitizer);
#else
constexpr bool kKeepsNothing = false;
#endif

}  // namespace

BufferPool& BufferPool::shared() {
  static BufferPool& pool = *new BufferPool(kKeepsNothing ? 0 : kMaxIdleBytes);
  return pool;
}

BufferPool::~BufferPool() {
  for (const SizeClass& each : classes_) {
    for (std::byte* data : each.idle) ::operator delete(data);
  }
}

// Eight sizes to the octave, at equal distances.
BufferPool::Place BufferPool::class_of(std::size_t n_bytes) {
  static_assert(kSmallest << (kClasses / kPerOctave) == kLargest);
  const auto octave = static_cast<std::size_t>(std::bit_width(n_bytes - 1) - std::bit_width(kSmallest - 1));
  const std::size_t step = (kSmallest << octave) / (2 * kPerOctave);
  const std::size_t n_steps = (n_bytes + step - 1) / step;  // from 9 to 16
  return {(octave - 1) * kPerOctave + n_steps - kPerOctave - 1, n_steps * step};
}

std::byte* BufferPool::take(std::size_t n_bytes) {
  if (n_bytes <= kSmallest || n_bytes > kLargest) return static_cast<std::byte*>(::operator new(n_bytes));
  const Place place = class_of(n_bytes);
  {
    MutexLock lock(mu_);
    SizeClass& size_class = classes_[place.number];
    size_class.asked_at = ++n_takes_;
    if (!size_class.idle.empty()) {
      std::byte* data = size_class.idle.back();
      size_class.idle.pop_back();
      idle_bytes_ -= place.bytes;
      return data;
    }
  }
  return static_cast<std::byte*>(::operator new(place.bytes));
}

void BufferPool::give_back(std::byte* data, std::size_t n_bytes) noexcept {
  if (n_bytes > kSmallest && n_bytes <= kLargest) {
    const Place place = class_of(n_bytes);
    if (place.bytes <= max_idle_bytes_) {
      MutexLock lock(mu_);
      make_room(place.bytes);
      try {
        classes_[place.number].idle.push_back(data);
        idle_bytes_ += place.bytes;
        return;
      } catch (const std::bad_alloc&) {  // then it is not kept
      }
    }
  }
  ::operator delete(data);
}

void BufferPool::make_room(std::size_t n_bytes) {
  while (idle_bytes_ + n_bytes > max_idle_bytes_) {
    std::size_t oldest = kClasses;
    for (std::size_t i = 0; i < kClasses; ++i) {
      if (classes_[i].idle.empty()) continue;
      if (oldest == kClasses || classes_[i].asked_at < classes_[oldest].asked_at) oldest = i;
    }
    ::operator delete(classes_[oldest].idle.back());
    classes_[oldest].idle.pop_back();
    const std::size_t n_steps = oldest % kPerOctave + kPerOctave + 1;
    idle_bytes_ -= n_steps * ((kSmallest << (oldest / kPerOctave)) / kPerOctave);
  }
}

std::size_t BufferPool::idle_bytes() const {
  MutexLock lock(mu_);
  return idle_bytes_;
}

}  // namespace stoker
