#include "media/jpeg/jpeg_codec.h"

#include <fmt/format.h>
#include <jerror.h>

#include <array>

namespace stoker {

JpegCodec::~JpegCodec() {
  if (is_created_) jpeg_destroy_decompress(&decompress_);
}

void JpegCodec::fail(Trouble trouble) {
  trouble_ = trouble;
  std::longjmp(jump_, 1);
}

void JpegCodec::on_error(j_common_ptr common) { self(common).fail(Trouble::kLibrary); }

/// Warnings (level -1) that mean lost pixels end the decoding, because a half-grey picture must not be trained on.
/// Traces are ignored.
void JpegCodec::on_message(j_common_ptr common, int level) {
  if (level >= 0) return;
  JpegCodec& codec = self(common);
  switch (common->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_ARITH_BAD_CODE:
      if (!codec.is_past_end_) codec.fail(Trouble::kDamaged);
      if (!codec.tolerance_.is_truncated_used) codec.fail(Trouble::kTruncated);
      codec.has_lost_rows_ = true;
      break;
    case JWRN_EXTRANEOUS_DATA:
      codec.n_stray_bytes_ += common->err->msg_parm.i[0];
      if (codec.is_in_pixels_ && codec.n_stray_bytes_ > kMaxStrayBytes) codec.fail(Trouble::kDamaged);
      break;
    default:
      break;
  }
}

boolean JpegCodec::on_empty(j_decompress_ptr decompress) {
  static constexpr std::array<JOCTET, 2> kEnd = {0xFF, JPEG_EOI};
  JpegCodec& codec = self(reinterpret_cast<j_common_ptr>(decompress));
  const bool is_tolerated = codec.tolerance_.is_end_optional || codec.tolerance_.is_truncated_used;
  if (!codec.is_in_pixels_ || !is_tolerated) codec.fail(Trouble::kTruncated);
  codec.is_past_end_ = true;
  decompress->src->next_input_byte = kEnd.data();
  decompress->src->bytes_in_buffer = kEnd.size();
  return TRUE;
}

void JpegCodec::on_skip(j_decompress_ptr decompress, long n_bytes) {
  if (n_bytes <= 0) return;
  jpeg_source_mgr& source = *decompress->src;
  if (static_cast<std::size_t>(n_bytes) > source.bytes_in_buffer) {
    on_empty(decompress);
    return;
  }
  source.next_input_byte += n_bytes;
  source.bytes_in_buffer -= static_cast<std::size_t>(n_bytes);
}

void JpegCodec::on_progress(j_common_ptr common) {
  JpegCodec& codec = self(common);
  if (codec.decompress_.input_scan_number > codec.max_scans_) codec.fail(Trouble::kTooManyScans);
}

Status JpegCodec::open(std::span<const std::byte> file, int max_scans, JpegTolerance tolerance) {
  // A new decompressor for each file: one that is used again keeps the tables of the file before, and a file that lacks
  // its own would decode with them, differently on every thread. Making one costs microseconds.
  if (is_created_) jpeg_destroy_decompress(&decompress_);
  is_created_ = false;
  coefficients_.clear();
  decompress_.client_data = this;
  decompress_.err = jpeg_std_error(&errors_);
  errors_.error_exit = on_error;
  errors_.emit_message = on_message;
  errors_.output_message = [](j_common_ptr) {};
  STOKER_CHECKED(guarded([](jpeg_decompress_struct& d) { jpeg_CreateDecompress(&d, JPEG_LIB_VERSION, sizeof(d)); }));
  is_created_ = true;
  coefficients_.attach<&JpegCodec::coefficients>(decompress_);
  source_.init_source = [](j_decompress_ptr) {};
  source_.term_source = [](j_decompress_ptr) {};
  source_.fill_input_buffer = on_empty;
  source_.skip_input_data = on_skip;
  source_.resync_to_restart = jpeg_resync_to_restart;
  progress_.progress_monitor = on_progress;
  decompress_.src = &source_;
  decompress_.progress = &progress_;
  source_.next_input_byte = reinterpret_cast<const JOCTET*>(file.data());
  source_.bytes_in_buffer = file.size();
  file_bytes_ = file.size();
  max_scans_ = max_scans;
  tolerance_ = tolerance;
  n_stray_bytes_ = 0;
  is_past_end_ = false;
  has_lost_rows_ = false;
  trouble_ = Trouble::kNone;
  is_in_pixels_ = false;
  errors_.num_warnings = 0;
  return {};
}

void JpegCodec::abort() {
  if (is_created_) jpeg_abort_decompress(&decompress_);
  coefficients_.clear();
}

Status JpegCodec::check_scans() {
  if (!is_past_end_ || decompress_.coef_bits == nullptr) return {};
  for (int c = 0; c < decompress_.num_components; ++c) {
    for (int k = 0; k < DCTSIZE2; ++k) has_lost_rows_ = has_lost_rows_ || decompress_.coef_bits[c][k] != 0;
  }
  if (!has_lost_rows_ || tolerance_.is_truncated_used) return {};
  trouble_ = Trouble::kTruncated;
  return failure();
}

void JpegCodec::add_notes(ImageNotes& notes) const {
  if (n_stray_bytes_ > 0) notes.add(ImageNote::kJpegExtraneous);
  if (has_lost_rows_) {
    notes.add(ImageNote::kTruncated);
  } else if (is_past_end_) {
    notes.add(ImageNote::kEndMissing);
  } else if (source_.bytes_in_buffer > 0 && !notes.has(ImageNote::kMorePictures)) {
    notes.add(ImageNote::kBytesAfterEnd);
  }
}

Status JpegCodec::failure() {
  std::array<char, JMSG_LENGTH_MAX> text{};
  if (errors_.format_message != nullptr && trouble_ != Trouble::kTruncated) {
    errors_.format_message(reinterpret_cast<j_common_ptr>(&decompress_), text.data());
  }
  const std::size_t at = is_past_end_ ? file_bytes_ : file_bytes_ - source_.bytes_in_buffer;
  switch (trouble_) {
    case Trouble::kTruncated:
      return {Reason::kImgTruncated, fmt::format("JPEG ends at byte {} before it is complete", file_bytes_)};
    case Trouble::kTooManyScans:
      return {Reason::kImgTooManyScans, fmt::format("JPEG with more than {} scans", max_scans_)};
    case Trouble::kDamaged:
      return {Reason::kImgCorrupt, fmt::format("{} (near byte {})", text.data(), at)};
    case Trouble::kLibrary:
    case Trouble::kNone:
      break;
  }
  const int code = errors_.msg_code;
  const bool is_unsupported = code == JERR_SOF_UNSUPPORTED || code == JERR_BAD_PRECISION ||
                              code == JERR_CONVERSION_NOTIMPL || code == JERR_NOT_COMPILED ||
                              code == JERR_FRACT_SAMPLE_NOTIMPL || code == JERR_CCIR601_NOTIMPL;
  if (code == JERR_OUT_OF_MEMORY) return {Reason::kInternal, fmt::format("JPEG: {}", text.data())};
  return {is_unsupported ? Reason::kImgUnsupported : Reason::kImgCorrupt,
          fmt::format("JPEG: {} (near byte {})", text.data(), at)};
}

}  // namespace stoker
