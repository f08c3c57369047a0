#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "data/rgb.h"

namespace stoker {

/// A NumPy array that owns `held` and shows `data`, which lies in it.
template <typename... Config, typename Held, typename T>
nanobind::ndarray<nanobind::numpy, T, Config...> array_over(std::unique_ptr<Held> held, T* data,
                                                            std::initializer_list<std::size_t> shape) {
  const nanobind::capsule owner(held.release(), [](void* p) noexcept { delete static_cast<Held*>(p); });
  return {data, shape, owner};
}

/// The values without a copy. `shape` has as many elements as there are values; `Config` is what a stub says of it.
template <typename... Config, typename T>
nanobind::ndarray<nanobind::numpy, T, Config...> array_of(std::vector<T>&& values,
                                                          std::initializer_list<std::size_t> shape) {
  auto held = std::make_unique<std::vector<T>>(std::move(values));
  T* const data = held->data();
  return array_over<Config...>(std::move(held), data, shape);
}

/// (height, width, 3) uint8, without a copy.
inline nanobind::ndarray<nanobind::numpy, std::uint8_t> array_of(RgbImage&& picture) {
  auto held = std::make_unique<RgbImage>(std::move(picture));
  const auto height = static_cast<std::size_t>(held->height_px), width = static_cast<std::size_t>(held->width_px);
  std::uint8_t* const data = held->pixels.data();
  return array_over(std::move(held), data, {height, width, 3});
}

}  // namespace stoker
