#pragma once

#include <cstddef>
#include <cstdio>  // jpeglib.h needs FILE
#include <list>
#include <vector>

#include <jpeglib.h>

#include "media/scratch.h"

namespace stoker {

/// The coefficients of a JPEG in several scans, in the process's pool of buffers. libjpeg would take them by malloc,
/// and glibc keeps what a thread freed, up to 32 MB, in an arena for that thread alone: sixteen threads that decode one
/// huge picture after another would end up holding sixteen.
class JpegCoefficients {
 public:
  using Finder = JpegCoefficients& (*)(j_common_ptr);
  /// From now on `decompress` has its coefficients here; until clear(), which is to follow its abort or destruction.
  /// @tparam find  This object again, from what libjpeg hands on.
  template <Finder find>
  void attach(jpeg_decompress_struct& decompress) {
    decompress.mem->request_virt_barray = [](j_common_ptr common, int, boolean, JDIMENSION n_columns, JDIMENSION n_rows,
                                             JDIMENSION) { return find(common).request(common, n_columns, n_rows); };
    decompress.mem->access_virt_barray = [](j_common_ptr, jvirt_barray_ptr array, JDIMENSION first_row, JDIMENSION,
                                            boolean) {
      return reinterpret_cast<Array*>(array)->rows.data() + first_row;
    };
  }
  void clear() { arrays_.clear(); }

 private:
  struct Array {
    Scratch memory;  // (n_rows, n_columns, 64) int16
    std::vector<JBLOCKROW> rows;
  };
  jvirt_barray_ptr request(j_common_ptr common, std::size_t n_columns, std::size_t n_rows);
  bool add(std::size_t n_columns, std::size_t n_rows);

  std::list<Array> arrays_;
};

}  // namespace stoker
