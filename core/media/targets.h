#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/rgb.h"
#include "media/image.h"
#include "media/resampler.h"
#include "media/scratch.h"

namespace stoker {

/// Rows of planes into patches, (n_patches, 3, patch, patch), merge groups together: row ((by * (gw / m) + bx) * m +
/// my) * m + mx. With patches of 16 the vertical pass writes straight to its final place; other sizes go through a row
/// of planes.
class PatchTarget final : public RowTarget {
 public:
  void start(const PatchGeometry& geometry, std::uint8_t* patches);
  std::uint8_t* row(int y, int c) override;
  const std::uint32_t* group_offsets() const override { return offsets_.data(); }
  bool has_lines() const override { return has_lines_; }
  void finish(int y) override;

 private:
  std::uint8_t* place(int y, int c) const;

  PatchGeometry geometry_;
  bool is_direct_ = true;
  bool has_lines_ = true;
  std::uint8_t* patches_ = nullptr;
  std::size_t patch_bytes_ = 0;
  std::vector<std::uint32_t> offsets_;         // (n_groups)
  std::vector<std::uint32_t> column_offsets_;  // (patches in a row)
  Scratch rows_;                               // (4, 3, stride), unless direct
  std::size_t stride_ = 0;
};

/// The same for a picture on its side: row y that comes is column y of the upright picture. Holds the rows of one
/// column of patches.
class TurnedPatchTarget final : public RowTarget {
 public:
  /// @param geometry  Of the upright picture.
  void start(const PatchGeometry& geometry, std::uint8_t* patches);
  std::uint8_t* row(int y, int c) override;
  const std::uint32_t* group_offsets() const override { return offsets_.data(); }
  bool has_lines() const override { return false; }
  void finish(int y) override;

 private:
  void write_column(int px);
  void write_other_sizes(int px, int c);

  PatchGeometry geometry_;
  std::uint8_t* patches_ = nullptr;
  std::size_t patch_bytes_ = 0;
  int n_rows_ = 0;  // held
  std::size_t stride_ = 0;
  Scratch rows_;                               // (n_rows, 3, stride)
  std::vector<int> n_finished_;                // rows, by column of patches
  std::vector<std::uint32_t> offsets_;         // (n_groups)
  std::vector<std::uint32_t> row_offsets_;     // (rows of patches): where each begins
  std::vector<std::uint32_t> turned_offsets_;  // (n_groups): of blocks turned one behind the other
  Scratch turned_;                             // (n_groups * 16, 16), unless patches are of 16
};

/// Rows of planes into an interleaved picture.
class ImageTarget final : public RowTarget {
 public:
  /// @param is_turned  Row y that comes is column y of the picture.
  explicit ImageTarget(RgbImage& image, bool is_turned = false);
  std::uint8_t* row(int y, int c) override;
  const std::uint32_t* group_offsets() const override { return offsets_.data(); }
  bool has_lines() const override { return false; }
  void finish(int y) override;

 private:
  RgbImage& image_;
  bool is_turned_;
  std::vector<std::uint32_t> offsets_;
  Scratch rows_;
  std::size_t stride_ = 0;
};

}  // namespace stoker
