// How fast encoded pictures become patches, beside what their codec alone takes.
//
//   pixels_bench ROUNDS FILE...
//
// Every round decodes each file with the bare codec and then turns it into patches, so that both see the same machine.
// Time is this thread's CPU time. Prints one JSON object: per format the pixels and, per round, the nanoseconds of
// both.

#include <fmt/format.h>
#include <jpeglib.h>
#include <spng.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "media/image.h"
#include "model/qwen_vl/smart_resize.h"

namespace {

using Bytes = std::vector<std::byte>;

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

/// The whole way of one picture with the limits that Qwen3-VL ships.
stoker::Status make_patches(const Bytes& file, stoker::PatchDecoder& decoder, std::vector<std::uint8_t>& patches) {
  const stoker::ImageOptions options;
  STOKER_TRY(const stoker::Probe found, stoker::probe(file, file.size(), options.limits));
  STOKER_TRY(const auto size,
             stoker::qwen_vl::smart_resize({found.info->upright_height_px(), found.info->upright_width_px()}, 32, {}));
  const stoker::PatchGeometry to{size.height, size.width, 16, 2};
  if (patches.size() < to.n_bytes() + 64) patches.resize(to.n_bytes() + 64);
  // A block's places are multiples of 64, so are ours.
  auto* out = patches.data() + (64 - reinterpret_cast<std::uintptr_t>(patches.data()) % 64) % 64;
  return decoder.decode(file, *found.info, to, options, out);
}

struct Format {
  std::string name;
  std::vector<Bytes> files;
  double pixels = 0;
  std::vector<double> raw_ns;
  std::vector<double> ours_ns;
};

std::string listed(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += fmt::format("{}{:.0f}", text.empty() ? "" : ", ", value);
  return text;
}

int run(int n_rounds, std::vector<Format>& formats) {
  stoker::PatchDecoder decoder;
  std::vector<std::uint8_t> patches;
  std::vector<JSAMPLE> pixels;
  for (int round = -1; round < n_rounds; ++round) {  // the first is a warm-up
    for (Format& format : formats) {
      double raw = 0;
      double ours = 0;
      for (const Bytes& file : format.files) {
        const double begin = cpu_ns();
        if (format.name == "jpeg") {
          decode_raw_jpeg(file, pixels);
        } else {
          decode_raw_png(file, pixels);
        }
        const double middle = cpu_ns();
        if (const auto status = make_patches(file, decoder, patches); !status.ok()) {
          fmt::print(stderr, "{}\n", status.to_string());
          return 1;
        }
        raw += middle - begin;
        ours += cpu_ns() - middle;
      }
      if (round < 0) continue;
      format.raw_ns.push_back(raw);
      format.ours_ns.push_back(ours);
    }
  }
  std::string text;
  for (const Format& format : formats) {
    text +=
        fmt::format("{}\"{}\": {{\"pixels\": {:.0f}, \"raw_ns\": [{}], \"ours_ns\": [{}]}}", text.empty() ? "" : ", ",
                    format.name, format.pixels, listed(format.raw_ns), listed(format.ours_ns));
  }
  fmt::print("{{{}}}\n", text);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "pixels_bench ROUNDS FILE...\n");
    return 2;
  }
  std::vector<Format> formats(2);
  formats[0].name = "jpeg";
  formats[1].name = "png";
  for (int i = 2; i < argc; ++i) {
    std::ifstream stream(argv[i], std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    Bytes file(text.size());
    for (std::size_t at = 0; at < text.size(); ++at) file[at] = static_cast<std::byte>(text[at]);
    const auto found = stoker::probe(file, file.size(), {});
    if (!found.ok() || !found->info) {
      fmt::print(stderr, "{}: {}\n", argv[i], found.ok() ? "no header" : found.status().to_string());
      return 1;
    }
    Format& format = formats[found->info->format == stoker::ImageFormat::kJpeg ? 0 : 1];
    format.pixels += static_cast<double>(found->info->height_px) * found->info->width_px;
    format.files.push_back(std::move(file));
  }
  std::erase_if(formats, [](const Format& format) { return format.files.empty(); });
  return run(std::atoi(argv[1]), formats);
}
