#include "media/encode_for_test.h"

#include <cstdio>  // before jpeglib.h, which needs FILE
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include <jpeglib.h>
#include <spng.h>

namespace stoker::testing {

RgbImage picture(int height_px, int width_px, unsigned seed) {
  RgbImage image{height_px, width_px, {}};
  std::mt19937 random(seed);
  for (int y = 0; y < height_px; ++y) {
    for (int x = 0; x < width_px; ++x) {
      for (int c = 0; c < 3; ++c) {
        int v = ((3 + c) * x + (5 - c) * y + static_cast<int>(seed) * 40) % 224 + static_cast<int>(random() % 32);
        if ((x / 7 + y / 5 + c) % 5 == 0) v = 255 - v;
        image.pixels.push_back(static_cast<std::uint8_t>(v));
      }
    }
  }
  return image;
}

std::vector<std::byte> encode_jpeg(const RgbImage& image, const JpegStyle& style) {
  jpeg_compress_struct c{};
  jpeg_error_mgr errors{};
  c.err = jpeg_std_error(&errors);
  jpeg_CreateCompress(&c, JPEG_LIB_VERSION, sizeof(c));
  unsigned char* data = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): the library's type
  jpeg_mem_dest(&c, &data, &size);
  c.image_width = static_cast<JDIMENSION>(image.width_px);
  c.image_height = static_cast<JDIMENSION>(image.height_px);
  c.input_components = 3;
  c.in_color_space = JCS_RGB;
  jpeg_set_defaults(&c);
  jpeg_set_quality(&c, style.quality, TRUE);
  if (style.is_grey) jpeg_set_colorspace(&c, JCS_GRAYSCALE);
  c.comp_info[0].h_samp_factor = style.luma_h;
  c.comp_info[0].v_samp_factor = style.luma_v;
  c.restart_interval = static_cast<unsigned>(style.restart_interval);
  if (style.is_progressive) jpeg_simple_progression(&c);
  jpeg_start_compress(&c, TRUE);
  if (style.orientation != 0) {
    std::string exif("Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\0\0\0\0\0\0\0", 32);
    exif[25] = static_cast<char>(style.orientation);
    jpeg_write_marker(&c, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(exif.data()),
                      static_cast<unsigned>(exif.size()));
  }
  while (c.next_scanline < c.image_height) {
    auto* row =
        const_cast<JSAMPLE*>(image.pixels.data() + static_cast<std::size_t>(c.next_scanline) * c.image_width * 3);
    jpeg_write_scanlines(&c, &row, 1);
  }
  jpeg_finish_compress(&c);
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> file(bytes, bytes + size);
  jpeg_destroy_compress(&c);
  std::free(data);  // NOLINT: the library's malloc
  return file;
}

RgbImage decode_jpeg_plainly(const std::vector<std::byte>& file) {
  jpeg_decompress_struct d{};
  jpeg_error_mgr errors{};
  d.err = jpeg_std_error(&errors);
  jpeg_CreateDecompress(&d, JPEG_LIB_VERSION, sizeof(d));
  jpeg_mem_src(&d, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&d, TRUE);
  d.out_color_space = JCS_RGB;
  jpeg_start_decompress(&d);
  RgbImage image{static_cast<int>(d.output_height), static_cast<int>(d.output_width), {}};
  image.pixels.resize(static_cast<std::size_t>(d.output_height) * d.output_width * 3);
  while (d.output_scanline < d.output_height) {
    JSAMPROW row = image.pixels.data() + static_cast<std::size_t>(d.output_scanline) * d.output_width * 3;
    jpeg_read_scanlines(&d, &row, 1);
  }
  jpeg_finish_decompress(&d);
  jpeg_destroy_decompress(&d);
  return image;
}

std::vector<std::byte> test_picture(const std::string& name) {
  std::ifstream in(std::string(STOKER_TESTDATA "/pictures/") + name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (text.empty()) std::fprintf(stderr, "testdata/pictures/%s is not there\n", name.c_str()), std::abort();
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

std::vector<std::byte> encode_png(const RgbImage& image, bool is_interlaced) {
  spng_ctx* context = spng_ctx_new(SPNG_CTX_ENCODER);
  spng_set_option(context, SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr header{};
  header.width = static_cast<std::uint32_t>(image.width_px);
  header.height = static_cast<std::uint32_t>(image.height_px);
  header.bit_depth = 8;
  header.color_type = SPNG_COLOR_TYPE_TRUECOLOR;
  header.interlace_method = is_interlaced ? SPNG_INTERLACE_ADAM7 : SPNG_INTERLACE_NONE;
  spng_set_ihdr(context, &header);
  spng_encode_image(context, image.pixels.data(), image.pixels.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE);
  std::size_t size = 0;
  int code = 0;
  void* data = spng_get_png_buffer(context, &size, &code);
  const auto* bytes = static_cast<const std::byte*>(data);
  std::vector<std::byte> file(bytes, bytes + size);
  std::free(data);  // NOLINT: the library's malloc
  spng_ctx_free(context);
  return file;
}

}  // namespace stoker::testing
