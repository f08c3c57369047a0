#include "source/http/body_unpacker.h"

#include <zlib.h>

#include <algorithm>
#include <cctype>

namespace stoker {
namespace {

constexpr std::size_t kOutBytes = 64 * 1024;
constexpr int kGzipOnly = 16 + MAX_WBITS;

bool is_gzip(std::string_view head) { return head.substr(0, 2) == "\x1F\x8B"; }

// RFC 9110 means zlib's form by "deflate"; some servers send the bare one.
bool is_zlib(std::string_view head) {
  if (head.size() < 2) return false;
  const auto first = static_cast<unsigned char>(head[0]), second = static_cast<unsigned char>(head[1]);
  return (first & 0x0F) == 8 && (first * 256 + second) % 31 == 0;
}

}  // namespace

Coding coding_of(std::string_view content_encoding) {
  std::string text(content_encoding);
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  Coding coding = Coding::kNone;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = text.find_first_not_of(" \t,", at);
    if (begin == std::string::npos) break;
    at = std::min(text.find_first_of(" \t,", begin), text.size());
    const std::string_view name = std::string_view(text).substr(begin, at - begin);
    if (name == "identity" || name == "aws-chunked") continue;
    const bool is_first = coding == Coding::kNone;
    if (is_first && (name == "gzip" || name == "x-gzip")) {
      coding = Coding::kGzip;
    } else if (is_first && name == "deflate") {
      coding = Coding::kDeflate;
    } else {
      coding = Coding::kOther;
    }
  }
  return coding;
}

void BodyUnpacker::End::operator()(z_stream_s* stream) const {
  inflateEnd(stream);
  delete stream;
}

bool BodyUnpacker::begin() {
  if (coding_ == Coding::kGzip && !is_gzip(held_)) {
    is_plain_ = true;
    return true;
  }
  auto stream = std::make_unique<z_stream>();
  const int window = coding_ == Coding::kGzip ? kGzipOnly : is_zlib(held_) ? MAX_WBITS : -MAX_WBITS;
  if (inflateInit2(stream.get(), window) != Z_OK) return false;
  stream_.reset(stream.release());
  out_.resize(kOutBytes);
  return true;
}

bool BodyUnpacker::feed(std::string_view bytes, const Sink& sink) {
  if (is_plain_) return bytes.empty() || sink(bytes);
  if (!stream_) {
    held_.append(bytes);
    if (held_.size() < 2) return true;
    is_damaged_ = !begin();
    if (is_damaged_) return false;
    return is_plain_ ? sink(held_) : inflate_some(held_, sink);
  }
  return inflate_some(bytes, sink);
}

bool BodyUnpacker::inflate_some(std::string_view bytes, const Sink& sink) {
  stream_->next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib does not write to it
  stream_->avail_in = static_cast<uInt>(bytes.size());
  while (true) {
    if (is_at_end_) {
      // Another member may follow; what is none is filling and is dropped, as gzip does.
      if (stream_->avail_in == 0 || coding_ != Coding::kGzip || *stream_->next_in != 0x1F) return true;
      inflateReset(stream_.get());
      is_at_end_ = false;
    }
    stream_->next_out = reinterpret_cast<Bytef*>(out_.data());
    stream_->avail_out = static_cast<uInt>(out_.size());
    const int result = inflate(stream_.get(), Z_NO_FLUSH);
    const std::size_t n_out = out_.size() - stream_->avail_out;
    if (n_out > 0 && !sink(std::string_view(out_).substr(0, n_out))) return false;
    is_at_end_ = result == Z_STREAM_END;
    if (is_at_end_) continue;
    if (result == Z_BUF_ERROR || (result == Z_OK && stream_->avail_in == 0 && stream_->avail_out > 0)) return true;
    if (result != Z_OK) {
      is_damaged_ = true;
      return false;
    }
  }
}

bool BodyUnpacker::finish(const Sink& sink) {
  if (is_damaged_) return false;
  if (!stream_ && !is_plain_) return held_.empty() || sink(held_);  // too short to be packed
  is_damaged_ = stream_ && !is_at_end_;
  return !is_damaged_;
}

}  // namespace stoker
