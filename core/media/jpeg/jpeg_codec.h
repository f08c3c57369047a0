#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdio>  // jpeglib.h needs FILE
#include <span>

#include <jpeglib.h>

#include "base/result.h"
#include "media/jpeg/jpeg_coefficients.h"
#include "media/notes.h"

namespace stoker {

/// What is accepted of a file that ends early.
struct JpegTolerance {
  bool is_end_optional = false;
  bool is_truncated_used = false;
};

/// libjpeg's decompressor with its errors tamed: nothing is printed, and every failure comes back as a Status. The
/// library reports errors by longjmp; `guarded` is the only place that sets one up, and what runs inside must own
/// nothing that needs a destructor.
class JpegCodec {
 public:
  JpegCodec() = default;
  ~JpegCodec();
  JpegCodec(const JpegCodec&) = delete;
  JpegCodec& operator=(const JpegCodec&) = delete;

  /// Begins a file (borrowed until the next call). Nothing of the file before is left, not even its tables.
  Status open(std::span<const std::byte> file, int max_scans, JpegTolerance tolerance);
  /// Calls fn(jpeg_decompress_struct&). Only calls into the library and plain data belong into `fn`.
  template <typename Fn>
  Status guarded(Fn fn) {
    if (run(fn)) return {};
    return failure();
  }
  /// Gives up the file, with all memory the library took for it.
  void abort();
  jpeg_decompress_struct& raw() { return decompress_; }
  /// The bytes not yet read.
  std::span<const std::byte> rest() const {
    return {reinterpret_cast<const std::byte*>(source_.next_input_byte), source_.bytes_in_buffer};
  }
  void begin_pixels() { is_in_pixels_ = true; }
  /// Whether a picture whose end marker was made up lacks scans (IMG_TRUNCATED unless that is tolerated).
  Status check_scans();
  /// What was odd about a file that was read to its end.
  void add_notes(ImageNotes& notes) const;

 private:
  enum class Trouble : unsigned char { kNone, kLibrary, kTruncated, kDamaged, kTooManyScans };
  /// Stray bytes tolerated once pixels began; more mean that the scan lost sync.
  static constexpr int kMaxStrayBytes = 64;

  template <typename Fn>
  bool run(Fn& fn) {
    if (setjmp(jump_) != 0) return false;
    fn(decompress_);
    return true;
  }
  Status failure();
  static JpegCodec& self(j_common_ptr common) { return *static_cast<JpegCodec*>(common->client_data); }
  static JpegCoefficients& coefficients(j_common_ptr common) { return self(common).coefficients_; }
  [[noreturn]] void fail(Trouble trouble);
  static void on_error(j_common_ptr common);
  static void on_message(j_common_ptr common, int level);
  static boolean on_empty(j_decompress_ptr decompress);
  static void on_skip(j_decompress_ptr decompress, long n_bytes);
  static void on_progress(j_common_ptr common);

  jpeg_decompress_struct decompress_{};
  jpeg_error_mgr errors_{};
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_{};
  JpegCoefficients coefficients_;
  std::size_t file_bytes_ = 0;
  int max_scans_ = 0;
  JpegTolerance tolerance_;
  int n_stray_bytes_ = 0;
  bool is_past_end_ = false;  // the file ended and an end marker was made up
  bool has_lost_rows_ = false;
  Trouble trouble_ = Trouble::kNone;
  bool is_created_ = false;
  bool is_in_pixels_ = false;
};

}  // namespace stoker
