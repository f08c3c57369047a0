// How fast encoded pictures become patches, beside what their codec alone takes; and the resize kernels alone.
//
//   pixels_bench ROUNDS WORKLOADS
//
// WORKLOADS is a text file, one workload a line: NAME RESIZER MIN_PIXELS MAX_PIXELS N_THREADS TARGET FILE... separated
// by blanks; TARGET is `avx2`, or `any` for the best that this CPU has. Rounds go over all workloads in turn, and
// within one each file is first decoded by the bare codec and then turned into patches, so that both see the same
// machine. Time is the thread's CPU time; of each file the best round counts. Prints one JSON object: per workload its
// pixels and the nanoseconds of both; per kernel, bytes and nanoseconds.

#include <fmt/format.h>
#include <hwy/targets.h>
#include <jpeglib.h>
#include <spng.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "media/float_resampler.h"
#include "media/image.h"
#include "media/resampler.h"
#include "media/targets.h"
#include "model/qwen_vl/smart_resize.h"

namespace {

using Bytes = std::vector<std::byte>;
constexpr int kPatch = 16;
constexpr int kMerge = 2;

/// Our kernels for AVX2 at most, or for whatever this CPU has. The codecs choose for themselves.
void choose_target(bool is_avx2) {
  hwy::SetSupportedTargetsForTest(is_avx2 ? HWY_AVX2 : 0);
  hwy::GetChosenTarget().DeInit();
}

double cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// The library's own path, rows into one buffer that is reused: what "raw decode" means.
void decode_raw_jpeg(const Bytes& file, std::vector<JSAMPLE>& row) {
  jpeg_decompress_struct decompress{};
  jpeg_error_mgr errors{};
  decompress.err = jpeg_std_error(&errors);
  jpeg_CreateDecompress(&decompress, JPEG_LIB_VERSION, sizeof(decompress));
  jpeg_mem_src(&decompress, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&decompress, TRUE);
  decompress.out_color_space = JCS_RGB;
  jpeg_start_decompress(&decompress);
  constexpr JDIMENSION kRows = 16;
  const std::size_t stride = static_cast<std::size_t>(decompress.output_width) * 3;
  row.resize(stride * kRows);
  std::array<JSAMPROW, kRows> rows{};
  for (JDIMENSION i = 0; i < kRows; ++i) rows[i] = row.data() + i * stride;
  while (decompress.output_scanline < decompress.output_height) jpeg_read_scanlines(&decompress, rows.data(), kRows);
  jpeg_finish_decompress(&decompress);
  jpeg_destroy_decompress(&decompress);
}

void decode_raw_png(const Bytes& file, std::vector<JSAMPLE>& pixels) {
  spng_ctx* context = spng_ctx_new(0);
  spng_set_png_buffer(context, file.data(), file.size());
  std::size_t n_bytes = 0;
  spng_decoded_image_size(context, SPNG_FMT_RGB8, &n_bytes);
  pixels.resize(n_bytes);
  if (spng_decode_image(context, pixels.data(), n_bytes, SPNG_FMT_RGB8, 0) != 0) std::abort();
  spng_ctx_free(context);
}

/// At a multiple of 64, as places in a block are.
std::uint8_t* aligned(std::vector<std::uint8_t>& memory, std::size_t n_bytes) {
  if (memory.size() < n_bytes + 64) memory.resize(n_bytes + 64);
  return memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
}

struct Workload {
  std::string name;
  stoker::Resizer resizer = stoker::Resizer::kAten;
  stoker::qwen_vl::PixelLimits limits;
  int n_threads = 1;
  bool is_avx2 = false;
  std::vector<Bytes> files;
  double pixels = 0;
  std::vector<double> raw_ns;   // of each file, the best
  std::vector<double> ours_ns;  // of each file, the best; the slowest thread's
};

/// The whole way of one picture.
stoker::Status make_patches(const Bytes& file, const Workload& work, stoker::PatchDecoder& decoder,
                            std::vector<std::uint8_t>& patches) {
  stoker::ImageOptions options;
  options.resizer = work.resizer;
  STOKER_TRY(const stoker::Probe found, stoker::probe(file, file.size(), options.limits));
  STOKER_TRY(const auto size,
             stoker::qwen_vl::smart_resize({found.info->upright_height_px(), found.info->upright_width_px()},
                                           kPatch * kMerge, work.limits));
  const stoker::PatchGeometry to{size.height, size.width, kPatch, kMerge};
  return decoder.decode(file, *found.info, to, options, aligned(patches, to.n_bytes()));
}

/// One thread's tools.
struct Worker {
  stoker::PatchDecoder decoder;
  std::vector<std::uint8_t> patches;
  std::vector<JSAMPLE> pixels;
};

stoker::Status run_file(Workload& work, std::size_t i, Worker& worker) {
  const Bytes& file = work.files[i];
  const double begin = cpu_ns();
  if (file[0] == std::byte{0xFF}) {
    decode_raw_jpeg(file, worker.pixels);
  } else if (file[0] == std::byte{0x89}) {
    decode_raw_png(file, worker.pixels);
  }
  const double middle = cpu_ns();
  const stoker::Status status = make_patches(file, work, worker.decoder, worker.patches);
  work.raw_ns[i] = std::min(work.raw_ns[i], middle - begin);
  work.ours_ns[i] = std::min(work.ours_ns[i], cpu_ns() - middle);
  return status;
}

/// All threads make patches of all files at the same time; what counts is how long the slowest took.
stoker::Status run_threads(Workload& work) {
  const auto n = static_cast<std::size_t>(work.n_threads);
  std::vector<std::vector<double>> spent(n, std::vector<double>(work.files.size()));
  std::vector<stoker::Status> statuses(n);
  std::barrier together(work.n_threads);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < n; ++t) {
    threads.emplace_back([&, t] {
      Worker worker;
      for (int warm = 1; warm >= 0; --warm) {
        for (std::size_t i = 0; i < work.files.size(); ++i) {
          together.arrive_and_wait();
          const double begin = cpu_ns();
          auto status = make_patches(work.files[i], work, worker.decoder, worker.patches);
          if (!status.ok()) statuses[t] = std::move(status);  // and on, because the others wait for this one
          spent[t][i] = cpu_ns() - begin;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < work.files.size(); ++i) {
    double slowest = 0;
    for (const auto& one : spent) slowest = std::max(slowest, one[i]);
    work.ours_ns[i] = std::min(work.ours_ns[i], slowest);
  }
  for (stoker::Status& status : statuses) {
    if (!status.ok()) return std::move(status);
  }
  return {};
}

struct Kernel {
  std::string name;
  stoker::Resizer resizer;
  int height, width;  // of the source
  int to_height, to_width;
  bool is_avx2 = false;
  double bytes = 0;
  double ns = std::numeric_limits<double>::infinity();
};

/// Rows that repeat: what the resampler alone takes, from rows in the cache to patches.
class KernelBench {
 public:
  KernelBench() {
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::uint8_t>(i * 2654435761U >> 13);
  }

  void run(Kernel& kernel) {
    const stoker::PatchGeometry to{kernel.to_height, kernel.to_width, kPatch, kMerge};
    stoker::ResampleJob job;
    job.source_height = kernel.height;
    job.source_width = kernel.width;
    job.height = kernel.to_height;
    job.width = kernel.to_width;
    job.weights = kernel.resizer == stoker::Resizer::kAten ? stoker::Weights::kInt16 : stoker::Weights::k22Bits;
    job.is_down_first =
        stoker::is_vertical_first(kernel.resizer, kernel.height, kernel.width, kernel.to_height, kernel.to_width);
    stoker::PatchTarget target;
    target.start(to, aligned(patches_, to.n_bytes()));
    const bool is_float = kernel.resizer == stoker::Resizer::kFloat;
    const double begin = cpu_ns();
    if (is_float) {
      floats_.start(kernel.height, kernel.width, kernel.to_height, kernel.to_width, target);
    } else {
      integers_.start(job, target);
    }
    stoker::RowSink& sink = is_float ? static_cast<stoker::RowSink&>(floats_) : integers_;
    for (int y = 0; y < kernel.height; y += 2) {
      stoker::RowPair pair{};
      for (std::size_t i = 0; i < 6; ++i) {
        pair.rows[i / 3][i % 3] = memory_.data() + (static_cast<std::size_t>(y) / 2 % 8 * 6 + i) * kStride;
      }
      if (!sink.take(y, pair).ok()) std::abort();
    }
    stoker::finish_streams();
    kernel.ns = std::min(kernel.ns, cpu_ns() - begin);
    kernel.bytes = 3.0 * kernel.height * kernel.width + 3.0 * kernel.to_height * kernel.to_width;
  }

 private:
  static constexpr std::size_t kStride = 4096 + 64;
  std::vector<std::uint8_t> memory_ = std::vector<std::uint8_t>(48 * kStride + 64);
  std::vector<std::uint8_t> patches_;
  stoker::Resampler integers_;
  stoker::FloatResampler floats_;
};

/// A plain copy of more than the caches hold; bytes read and written.
void copy_memory(Kernel& kernel) {
  constexpr std::size_t kBytes = std::size_t{96} << 20;
  static const std::vector<std::uint8_t> from(kBytes, 1);
  static std::vector<std::uint8_t> to(kBytes);
  const double begin = cpu_ns();
  std::memcpy(to.data(), from.data(), kBytes);
  kernel.ns = std::min(kernel.ns, cpu_ns() - begin);
  kernel.bytes = 2.0 * static_cast<double>(kBytes);
}

Bytes read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  Bytes file(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) file[at] = static_cast<std::byte>(text[at]);
  return file;
}

bool parse(const std::string& line, Workload& work) {
  std::istringstream words(line);
  std::string resizer;
  std::string target;
  words >> work.name >> resizer >> work.limits.min_pixels >> work.limits.max_pixels >> work.n_threads >> target;
  work.is_avx2 = target == "avx2";
  work.resizer = resizer == "pillow13" ? stoker::Resizer::kPillow13
                 : resizer == "float"  ? stoker::Resizer::kFloat
                                       : stoker::Resizer::kAten;
  for (std::string path; words >> path;) {
    Bytes file = read_file(path);
    const auto found = stoker::probe(file, file.size(), {});
    if (!found.ok() || !found->info) {
      fmt::print(stderr, "{}: {}\n", path, found.ok() ? "no header" : found.status().to_string());
      return false;
    }
    work.pixels += static_cast<double>(found->info->height_px) * found->info->width_px;
    work.files.push_back(std::move(file));
  }
  work.raw_ns.assign(work.files.size(), std::numeric_limits<double>::infinity());
  work.ours_ns = work.raw_ns;
  return !work.files.empty();
}

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

int run(int n_rounds, std::vector<Workload>& workloads) {
  Worker worker;
  KernelBench bench;
  std::vector<Kernel> kernels = {
      {"copy", stoker::Resizer::kAten, 0, 0, 0, 0},
      {"aten", stoker::Resizer::kAten, 1000, 1333, 992, 1344},
      {"aten_half", stoker::Resizer::kAten, 2000, 2666, 992, 1344},
      {"pillow13", stoker::Resizer::kPillow13, 1000, 1333, 992, 1344},
      {"pillow13_half", stoker::Resizer::kPillow13, 2000, 2666, 992, 1344},
      {"pillow13_vertical_first", stoker::Resizer::kPillow13, 1333, 1000, 1280, 992},
      {"float", stoker::Resizer::kFloat, 1000, 1333, 992, 1344},
  };
  for (std::size_t i = 1, n = kernels.size(); i < n; ++i) {
    Kernel narrow = kernels[i];
    narrow.name += "_avx2";
    narrow.is_avx2 = true;
    kernels.push_back(std::move(narrow));
  }
  for (int round = 0; round < n_rounds; ++round) {
    for (Workload& work : workloads) {
      choose_target(work.is_avx2);
      if (work.n_threads > 1) {
        if (const auto status = run_threads(work); !status.ok()) {
          fmt::print(stderr, "{}: {}\n", work.name, status.to_string());
          return 1;
        }
        continue;
      }
      for (std::size_t i = 0; i < work.files.size(); ++i) {
        if (const auto status = run_file(work, i, worker); !status.ok()) {
          fmt::print(stderr, "{}: {}\n", work.name, status.to_string());
          return 1;
        }
      }
    }
    for (Kernel& kernel : kernels) {
      choose_target(kernel.is_avx2);
      if (kernel.height == 0) {
        copy_memory(kernel);
      } else {
        bench.run(kernel);
      }
    }
  }
  choose_target(false);
  std::string text;
  for (const Workload& work : workloads) {
    const double raw = sum(work.raw_ns);
    text += fmt::format("{}\"{}\": {{\"pixels\": {:.0f}, \"threads\": {}, \"raw_ns\": {}, \"ours_ns\": {:.0f}}}",
                        text.empty() ? "" : ", ", work.name, work.pixels, work.n_threads,
                        work.n_threads > 1 ? "null" : fmt::format("{:.0f}", raw), sum(work.ours_ns));
  }
  std::string kernel_text;
  for (const Kernel& kernel : kernels) {
    kernel_text += fmt::format("{}\"{}\": {{\"bytes\": {:.0f}, \"ns\": {:.0f}}}", kernel_text.empty() ? "" : ", ",
                               kernel.name, kernel.bytes, kernel.ns);
  }
  fmt::print("{{\"workloads\": {{{}}}, \"kernels\": {{{}}}}}\n", text, kernel_text);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "pixels_bench ROUNDS WORKLOADS\n");
    return 2;
  }
  std::vector<Workload> workloads;
  std::ifstream lines(argv[2]);
  for (std::string line; std::getline(lines, line);) {
    if (!parse(line, workloads.emplace_back())) {
      fmt::print(stderr, "cannot use the workload \"{}\"\n", line.substr(0, 60));
      return 1;
    }
  }
  return run(std::max(1, std::atoi(argv[1])), workloads);
}
