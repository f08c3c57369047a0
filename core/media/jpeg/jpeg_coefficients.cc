#include "media/jpeg/jpeg_coefficients.h"

#include <jerror.h>

#include <new>

namespace stoker {

jvirt_barray_ptr JpegCoefficients::request(j_common_ptr common, std::size_t n_columns, std::size_t n_rows) {
  if (!add(n_columns, n_rows)) ERREXIT1(common, JERR_OUT_OF_MEMORY, 0);  // jumps: nothing here may need an end
  return reinterpret_cast<jvirt_barray_ptr>(&arrays_.back());
}

bool JpegCoefficients::add(std::size_t n_columns, std::size_t n_rows) try {
  Array& array = arrays_.emplace_back();
  auto* blocks = array.memory.get<JBLOCK>(n_columns * n_rows);  // zero, as the library wants most of them
  array.rows.resize(n_rows);
  for (std::size_t row = 0; row < n_rows; ++row) array.rows[row] = blocks + row * n_columns;
  return true;
} catch (const std::bad_alloc&) {
  return false;  // must not pass through the library
}

}  // namespace stoker
