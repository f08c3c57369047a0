#pragma once

#include <tiffio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "media/tiff/tiff_header.h"

namespace stoker {

/// libtiff on bytes in memory. Its handlers are this file's own: nothing is printed, and the process's are not touched.
class TiffFile {
 public:
  TiffFile() = default;
  ~TiffFile();
  TiffFile(const TiffFile&) = delete;
  TiffFile& operator=(const TiffFile&) = delete;

  Status open(std::span<const std::byte> file, const TiffHeader& header);
  TIFF* get() const { return tiff_; }

  /// The rows of the band that begins at row `first`: (planes, band_rows, row_bytes). Rows beyond the picture are void.
  Status read_band(const TiffHeader& header, int first, std::uint8_t* to);

  /// IMG_TRUNCATED if the file ends early, else IMG_CORRUPT; with what the codec said.
  Status failure() const;

 private:
  static tmsize_t on_read(thandle_t self, void* to, tmsize_t n);
  static toff_t on_seek(thandle_t self, toff_t offset, int whence);
  static int on_error(TIFF* tiff, void* self, const char* module, const char* format, va_list arguments);

  TIFF* tiff_ = nullptr;
  std::span<const std::byte> file_;
  std::uint64_t at_ = 0;
  bool is_short_ = false;
  std::string said_;
};

}  // namespace stoker
