#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/sample.h"
#include "media/image.h"
#include "pipeline/dataset.h"
#include "pipeline/measured.h"
#include "pipeline/sample_steps.h"
#include "pipeline/settings.h"

namespace stoker {

/// Tokens of a sample, half-open.
struct TokenRange {
  std::int64_t begin = 0, end = 0;
};

/// A picture of a sample, as the loader plans and decodes it: an image, or a frame of a clip.
struct PreparedPicture {
  std::string reference;  ///< as the row has it
  MeasuredImage measured;
  std::optional<ImageInfo> info;  ///< of the header; absent where there was nothing to read
  TokenRange tokens;              ///< placeholders of an image
  std::int64_t patch_begin = 0;   ///< first of an image's patches
  Status bad;
};

/// A clip that is given as a list of pictures.
struct PreparedClip {
  std::vector<PreparedPicture> frames;
  qwen_vl::ClipPlan plan;          ///< not planned where a frame is bad
  qwen_vl::ClipTimes times;        ///< of the frames, as the profile's reference is told
  std::vector<double> seconds;     ///< of each temporal patch
  std::vector<TokenRange> tokens;  ///< placeholders: one range, or one for each temporal patch
  std::int64_t patch_begin = 0;    ///< first of its patches

  bool is_planned() const { return plan.n_tokens > 0; }
};

/// A rendered turn, its placeholders expanded.
struct PreparedTurn {
  std::optional<Role> role;  ///< absent where the template made the turn up
  bool is_assistant = false;
  TokenRange tokens;
};

/// A box of the row, or the name of an object.
struct PreparedBox {
  Box box;                ///< as the row has it
  std::size_t image = 0;  ///< the number of its picture among the images
  std::string text;       ///< what stands for it
};

/// One sample as the model will see it. T tokens, P patches of images, V of clips, p pixels a side, t frames deep.
struct Prepared {
  std::string id;         ///< of the row; for people
  Status bad;             ///< why the loader would not use the sample; the rest is filled as far as it got
  std::string bad_media;  ///< the media to blame, if one is
  std::vector<std::int64_t> input_ids, labels;  ///< (T)
  std::vector<std::int64_t> position_ids;       ///< (4, T)
  std::vector<float> loss_weights;              ///< (T) of the labels, where the settings deliver them; else empty
  std::vector<std::uint8_t> image_patches;      ///< (P, 3, p, p); empty where pixels were not asked for
  std::vector<std::uint8_t> video_patches;      ///< (V, 3, t, p, p); the same
  std::vector<PreparedPicture> images;          ///< in reading order
  std::vector<PreparedClip> clips;              ///< in reading order
  std::vector<PreparedTurn> turns;
  std::vector<PreparedBox> boxes;
  std::int64_t n_patches = 0, n_video_patches = 0;
  std::int64_t cost = 0;  ///< as planning counts it, thousands of FLOPs
};

/// Walks single samples through the loader's own steps, one at a time and without a plan: what `prepare`, `inspect` and
/// `parity` show is what a run would get. Threads: any, const; calls block for storage until `stop`.
class Inspector {
 public:
  /// Reads the model's folder. @return MODEL_FOLDER, TOKENIZER, TEMPLATE_UNKNOWN, SETTINGS.
  static Result<std::unique_ptr<Inspector>> create(LoaderSettings settings);

  /// @param line        A row's JSON. @param media_root  Where its relative media lie.
  /// @param rows  How the row is read: as its manifest says.
  /// @param with_pixels  False: media are read and sized, not decoded.
  /// @return What is no fault of the sample: FETCH_*, OUTAGE, STOPPED, INTERNAL. A bad sample is ok, with `bad` set.
  Result<Prepared> prepare(std::string_view line, const std::string& media_root, const RowOptions& rows,
                           bool with_pixels, std::stop_token stop) const;

  /// The row that prepare() makes a sample of, after the user's own code. @return As parse_row; USER_CODE.
  Result<Sample> parse(std::string_view line, const RowOptions& rows, RowNotes& notes) const;

  /// Reads one object that prepare() named. For showing the picture itself.
  Result<FetchedObject> fetch(const std::string& url, std::stop_token stop) const;

  /// Opens the settings' manifests. @return As Dataset::open.
  Result<Dataset> open_dataset(std::stop_token stop) const;

  /// The first row whose `id` is that text or number, whether or not a run would use it.
  static Result<std::optional<std::uint64_t>> row_with_id(const Manifest& manifest, std::string_view id,
                                                          std::stop_token stop);

  const qwen_vl::QwenVl& model() const { return *model_; }
  const LoaderSettings& settings() const { return settings_; }

 private:
  Inspector(LoaderSettings settings, std::shared_ptr<const qwen_vl::QwenVl> model)
      : settings_(std::move(settings)), model_(std::move(model)) {}
  Result<std::unique_ptr<Fetcher>> make_fetcher() const;

  /// The encoded pictures of a sample.
  struct Objects {
    std::vector<Buffer> images;
    std::vector<Buffer> frames;  ///< of all clips, one after another
  };
  Status read_pictures(const std::vector<MediaRef>& media, MeasuredSample& sample, Prepared& out, Objects& objects,
                       std::stop_token stop) const;
  Status read_picture(Fetcher& fetcher, const PictureRef& reference, PreparedPicture& picture, Buffer& object,
                      std::stop_token stop) const;
  void take_plans(const MeasuredSample& sample, Prepared& out) const;
  void write_tokens(const MeasuredSample& sample, const Sample& row, const std::vector<qwen_vl::TurnRange>& turns,
                    Prepared& out) const;
  Status decode(const MeasuredSample& sample, const Objects& objects, Prepared& out) const;

  const LoaderSettings settings_;
  const std::shared_ptr<const qwen_vl::QwenVl> model_;
};

}  // namespace stoker
