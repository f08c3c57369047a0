#include "manifest/unpack.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/hash.h"
#include "manifest/array_scanner.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::size_t kHeadBytes = std::size_t{64} << 10;
constexpr std::size_t kPositionsKept = 65536;
constexpr std::uint64_t kProgressBytes = std::uint64_t{64} << 20;
constexpr int kMaxWindowLog = 27;  // 128 MiB; what zstd itself takes without being asked

class GzipUnpacker final : public Unpacker {
 public:
  GzipUnpacker() : out_(kChunkBytes, '\0') {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    is_ready_ = inflateInit2(&stream_, kGzipOnly) == Z_OK;
  }
  ~GzipUnpacker() override {
    if (is_ready_) inflateEnd(&stream_);
  }
  GzipUnpacker(const GzipUnpacker&) = delete;
  GzipUnpacker& operator=(const GzipUnpacker&) = delete;

  Status feed(std::string_view piece, const PieceSink& sink) override {
    if (!is_ready_) return Status(Reason::kBudget, "no memory for unpacking gzip");
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));  // zlib does not write to it
    stream_.avail_in = static_cast<uInt>(piece.size());
    while (true) {
      if (is_at_end_) {
        // Several members may follow one another, and zeros may fill up a tape's block.
        while (stream_.avail_in > 0 && *stream_.next_in == 0) {
          ++stream_.next_in;
          --stream_.avail_in;
        }
        if (stream_.avail_in == 0) return {};
        if (inflateReset(&stream_) != Z_OK) return Status(Reason::kInternal, "inflateReset");
        is_at_end_ = false;
      }
      stream_.next_out = reinterpret_cast<Bytef*>(out_.data());
      stream_.avail_out = static_cast<uInt>(out_.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      const std::size_t n = out_.size() - stream_.avail_out;
      if (n > 0) STOKER_CHECKED(sink({out_.data(), n}));
      if (result == Z_MEM_ERROR) return Status(Reason::kBudget, "no memory for unpacking gzip");
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        return Status(Reason::kManifest, fmt::format("the gzip data is damaged: {}",
                                                     stream_.msg != nullptr ? stream_.msg : "it wants a dictionary"));
      }
      is_at_end_ = result == Z_STREAM_END;
      if (!is_at_end_ && stream_.avail_in == 0 && stream_.avail_out > 0) return {};
    }
  }

  Status finish() const override {
    return is_at_end_ ? Status() : Status(Reason::kManifest, "the gzip data ends too early");
  }

 private:
  std::string out_;
  z_stream stream_{};
  bool is_ready_ = false;
  bool is_at_end_ = false;
};

class ZstdUnpacker final : public Unpacker {
 public:
  ZstdUnpacker() : out_(kChunkBytes, '\0'), stream_(ZSTD_createDStream()) {
    if (stream_) ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  }

  Status feed(std::string_view piece, const PieceSink& sink) override {
    if (!stream_) return Status(Reason::kBudget, "no memory for unpacking zstd");
    ZSTD_inBuffer in{piece.data(), piece.size(), 0};
    while (true) {
      ZSTD_outBuffer out{out_.data(), out_.size(), 0};
      const std::size_t result = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (out.pos > 0) STOKER_CHECKED(sink({out_.data(), out.pos}));
      if (ZSTD_isError(result) != 0) {
        return Status(Reason::kManifest, fmt::format("the zstd data is damaged: {}", ZSTD_getErrorName(result)));
      }
      is_at_end_ = result == 0;
      if (in.pos == in.size && out.pos < out_.size()) return {};
    }
  }

  Status finish() const override {
    return is_at_end_ ? Status() : Status(Reason::kManifest, "the zstd data ends too early");
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  std::string out_;
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  bool is_at_end_ = true;
};

// A file on its way into the index directory, or into none at all.
class NewFile {
 public:
  explicit NewFile(std::string folder) : has_name_(!folder.empty()) {
    if (!has_name_) {
      std::error_code ignored;
      folder = fs::temp_directory_path(ignored).string();
      if (ignored) folder = "/tmp";
    }
    path_ = folder + "/unpacking.XXXXXX";
    file_ = FileHandle(::mkstemp(path_.data()));
    if (file_.is_open() && !has_name_) ::unlink(path_.c_str());
  }
  ~NewFile() {
    if (file_.is_open() && has_name_ && !is_kept_) ::unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  Status opened() const { return file_.is_open() ? Status() : error(); }
  Status append(const void* data, std::size_t n_bytes) { return write_all(file_, data, n_bytes) ? Status() : error(); }
  /// Its final name; whoever comes last has the same content.
  Status keep(const std::string& path) {
    if (!has_name_) return {};
    if (::fchmod(file_.get(), 0644) != 0 || ::fsync(file_.get()) != 0 || ::rename(path_.c_str(), path.c_str()) != 0) {
      return error();
    }
    is_kept_ = true;
    return {};
  }
  FileHandle take() { return std::move(file_); }

 private:
  Status error() const { return {Reason::kIndexDir, fmt::format("{}: {}", path_, errno_text())}; }

  const bool has_name_;
  bool is_kept_ = false;
  std::string path_;
  FileHandle file_;
};

// Writes what was unpacked as lines, and finds out whether it is a list.
class RowsWriter {
 public:
  explicit RowsWriter(std::string folder) : folder_(std::move(folder)), rows_(folder_) {}

  Status write(std::string_view piece) {
    if (!is_decided_) {
      // Until something but blanks has come; a manifest of blanks alone has no rows either way.
      before_ += piece;
      const std::size_t first = before_.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
      if (first == std::string::npos && before_.size() < kHeadBytes) return {};
      STOKER_CHECKED(decide());
      const std::string before = std::exchange(before_, {});
      return add(before);
    }
    return add(piece);
  }

  Status finish() {
    if (!is_decided_) {
      STOKER_CHECKED(decide());
      STOKER_CHECKED(add(before_));
    }
    if (scanner_) STOKER_CHECKED(scanner_->finish());
    return flush();
  }

  bool is_list() const { return scanner_ != nullptr; }
  NewFile& rows() { return rows_; }
  NewFile& positions() { return *positions_; }

 private:
  Status decide() {
    is_decided_ = true;
    if (!ArrayScanner::begins_list(before_)) return {};
    positions_ = std::make_unique<NewFile>(folder_);
    STOKER_CHECKED(positions_->opened());
    scanner_ = std::make_unique<ArrayScanner>(lines_, at_);
    return {};
  }

  Status add(std::string_view piece) {
    if (!scanner_) return rows_.append(piece.data(), piece.size());
    STOKER_CHECKED(scanner_->feed(piece));
    return lines_.size() >= kChunkBytes || at_.size() >= kPositionsKept ? flush() : Status();
  }

  Status flush() {
    if (!lines_.empty()) STOKER_CHECKED(rows_.append(lines_.data(), lines_.size()));
    if (!at_.empty()) STOKER_CHECKED(positions_->append(at_.data(), at_.size() * sizeof(RowLocation)));
    lines_.clear();
    at_.clear();
    return {};
  }

  const std::string folder_;
  NewFile rows_;
  std::unique_ptr<NewFile> positions_;
  std::string before_;
  bool is_decided_ = false;
  std::string lines_;
  std::vector<RowLocation> at_;
  std::unique_ptr<ArrayScanner> scanner_;
};

std::string form_of(Packing packing, bool is_list) {
  std::string form = is_list ? "a JSON list" : "JSONL";
  if (packing == Packing::kGzip) form += " in gzip";
  if (packing == Packing::kZstd) form += " in zstd";
  return form;
}

std::string rows_path(const std::string& folder, const std::string& name) { return folder + "/" + name + ".jsonl"; }
std::string positions_path(const std::string& folder, const std::string& name) { return folder + "/" + name + ".at"; }

// What an earlier run unpacked from the same file.
bool use_earlier(const std::string& folder, const std::string& name, Packing packing, Unpacked& out) {
  out.name = rows_path(folder, name);
  out.rows = FileHandle(::open(out.name.c_str(), O_RDONLY | O_CLOEXEC));
  out.positions = FileHandle(::open(positions_path(folder, name).c_str(), O_RDONLY | O_CLOEXEC));
  out.form = form_of(packing, out.positions.is_open());
  return out.rows.is_open();
}

// Reads the whole manifest through the unpacker; the name that its content gives it.
Result<std::string> run(const FileHandle& file, const std::string& path, const FileStamp& stamp, Packing packing,
                        RowsWriter& writer, const ManifestOptions& options, Claim* claim, const std::stop_token& stop) {
  const std::unique_ptr<Unpacker> unpacker = packing == Packing::kNone ? nullptr : make_unpacker(packing);
  const PieceSink sink = [&](std::string_view piece) { return writer.write(piece); };
  Digest digest;
  std::vector<char> chunk(kChunkBytes);
  std::uint64_t done = 0;
  std::uint64_t next_progress = kProgressBytes;
  while (true) {
    if (stop.stop_requested()) return Status(Reason::kStopped, path + ": the unpacking was stopped");
    auto read = read_at(file, chunk.data(), chunk.size(), done);
    if (!read.ok()) return Status(Reason::kManifest, fmt::format("{}: {}", path, read.status().message()));
    if (*read == 0) break;
    const std::string_view piece(chunk.data(), *read);
    digest.add(piece.data(), piece.size());
    if (Status taken = unpacker ? unpacker->feed(piece, sink) : sink(piece); !taken.ok()) {
      return std::move(taken).with(path);
    }
    done += *read;
    if (claim != nullptr) claim->tell(done, stamp.n_bytes);
    if (options.on_progress && done >= next_progress) {
      options.on_progress(done, std::max(done, stamp.n_bytes));
      next_progress = done + kProgressBytes;
    }
  }
  if (unpacker) {
    if (Status whole = unpacker->finish(); !whole.ok()) return std::move(whole).with(path);
  }
  if (Status whole = writer.finish(); !whole.ok()) return std::move(whole).with(path);
  STOKER_TRY(const FileStamp after, stamp_of(file, path));
  if (after != stamp || done != stamp.n_bytes) {
    return Status(Reason::kManifest, path + ": the file changed while it was unpacked");
  }
  return fmt::format("{}-{}", digest.hex(), done);
}

}  // namespace

Packing packing_of(std::string_view head) {
  if (head.starts_with("\x1F\x8B")) return Packing::kGzip;
  if (head.starts_with("\x28\xB5\x2F\xFD")) return Packing::kZstd;
  // A frame that zstd readers skip may come first.
  const bool is_skipped =
      head.size() >= 4 && (static_cast<unsigned char>(head[0]) & 0xF0) == 0x50 && head.substr(1, 3) == "\x2A\x4D\x18";
  return is_skipped ? Packing::kZstd : Packing::kNone;
}

std::unique_ptr<Unpacker> make_unpacker(Packing packing) {
  if (packing == Packing::kZstd) return std::make_unique<ZstdUnpacker>();
  return std::make_unique<GzipUnpacker>();
}

Result<Unpacked> unpack(const FileHandle& file, const std::string& path, const FileStamp& stamp,
                        const ManifestOptions& options, const std::stop_token& stop) {
  Unpacked out;
  std::string head(kHeadBytes, '\0');
  auto n_head = read_at(file, head.data(), head.size(), 0);
  if (!n_head.ok()) return Status(Reason::kManifest, fmt::format("{}: {}", path, n_head.status().message()));
  head.resize(*n_head);
  const Packing packing = packing_of(head);
  out.form = form_of(packing, false);
  if (packing == Packing::kNone && !ArrayScanner::begins_list(head)) return out;

  std::string folder;
  std::string hint;
  std::unique_ptr<Claim> claim;
  if (!options.index_dir.empty()) {
    folder = options.index_dir + "/unpacked";
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return Status(Reason::kIndexDir, fmt::format("{}: {}", folder, error.message()));
    hint = hint_path(options.index_dir, path, stamp, "unpacked");
    if (options.trust_stat) {
      const auto is_known = [&] {
        const std::string known = read_hint(hint, stamp);
        return !known.empty() && use_earlier(folder, known, packing, out);
      };
      STOKER_TRY(claim, Claim::take(hint + ".claim", is_known, options.on_progress, stop, options.claim));
      if (claim == nullptr) return out;
    }
  }
  out = {};
  RowsWriter writer(folder);
  STOKER_CHECKED(writer.rows().opened());
  STOKER_TRY(const std::string name, run(file, path, stamp, packing, writer, options, claim.get(), stop));
  out.form = form_of(packing, writer.is_list());
  // The rows last: whoever finds them finds the positions too.
  if (writer.is_list()) {
    STOKER_CHECKED(writer.positions().keep(positions_path(folder, name)));
    out.positions = writer.positions().take();
  }
  STOKER_CHECKED(writer.rows().keep(rows_path(folder, name)));
  out.rows = writer.rows().take();
  if (!folder.empty()) {
    out.name = rows_path(folder, name);
    STOKER_CHECKED(write_hint(hint, stamp, name));
  }
  return out;
}

}  // namespace stoker
