#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/sample.h"
#include "manifest/row.h"
#include "media/image.h"
#include "mem/buffer.h"
#include "model/qwen_vl/qwen_vl.h"
#include "pipeline/dataset.h"
#include "pipeline/measured.h"
#include "pipeline/settings.h"
#include "source/source.h"

namespace stoker {

/// The steps that one sample goes through, for whoever walks it: the loader's measurer and preparer, `prepare`,
/// `inspect`, `check`. There is no second implementation of any of them. Threads: any.

/// The model that a run's settings name, as they want it. @return As QwenVl::load.
Result<std::shared_ptr<const qwen_vl::QwenVl>> load_model(const LoaderSettings& settings);

/// What planning takes tokens and patches to cost: what the settings say, else what follows from the model's config,
/// else what Qwen3-VL-8B costs.
CostModel cost_of(const OutputSettings& output, const qwen_vl::QwenVl& model);

/// How a run's media are fetched.
FetchSettings fetch_settings(const LoaderSettings& settings);

/// What only people want to know of a row's text.
struct ShownText {
  std::vector<qwen_vl::TurnRange> turns;  ///< where each rendered turn lies
  std::vector<std::string> boxes;         ///< (row.boxes) what each became
};

/// A row, parsed, rendered and tokenised, with its media resolved: fills `sample.text`, `sample.images[].url`. The text
/// of a row with boxes waits for the sizes of its pictures: finish_text.
/// @param row    Gets the parsed row: its media references and sizes are needed for the next step.
/// @param notes, shown  May be null.
/// @return What makes the sample bad (JSON_*, ROW_*, MEDIA_*, NO_LOSS_TOKENS ...); `sample.bad_media` names the media
/// that is to blame, if one is.
/// @param rows  How the row's manifest is read.
Status read_sample(std::string_view line, const std::string& media_root, const RowOptions& rows,
                   const OutputSettings& output, const qwen_vl::QwenVl& model, MeasuredSample& sample, Sample& row,
                   RowNotes* notes = nullptr, ShownText* shown = nullptr);

/// The bytes of an image that stands in its row. @return MEDIA_DATA, MEDIA_TOO_LARGE.
Result<Buffer> read_inline(const std::string& reference);
/// The same of several pictures of a sample, ascending, whose row is read again: once for all of them. @return as
/// Manifest::read and parse_row; USER_CODE; MANIFEST if the row changed; of each picture its own.
Result<std::vector<Result<Buffer>>> read_inline(const Dataset& dataset, const OutputSettings& output,
                                                const OrderEntry& entry, std::span<const std::size_t> pictures);
/// What planning needs of one. @param info  May be null; gets what its header says. @return MEDIA_DATA,
/// MEDIA_SIZE_MISMATCH, MEDIA_TOO_LARGE, IMG_*.
Status measure_inline(const OutputSettings& output, const qwen_vl::QwenVl& model, const std::string& reference,
                      MeasuredImage& image, ImageInfo* info = nullptr);

/// Whether a row's own `width` and `height` are what is planned with.
bool is_size_trusted(const OutputSettings& output, const MediaRef& media);

/// What a row says of one picture of a sample (MeasuredSample::picture): an image, or a frame of a clip.
struct PictureRef {
  const MediaRef* media;         ///< of a frame its clip's
  const std::string* reference;  ///< its own
};
/// Of all pictures in their order. Borrows from `media`.
std::vector<PictureRef> pictures_of(const std::vector<MediaRef>& media);

/// What a header said, as sizes are planned with.
qwen_vl::SizePx upright_size(const ImageInfo& info, const ImageOptions& options);

/// Plans an image from its upright size; of a frame the size is kept until its clip is planned. @return IMG_ASPECT,
/// IMG_SIZE, USER_CODE.
Status plan_measured(const OutputSettings& output, const qwen_vl::QwenVl& model, qwen_vl::SizePx upright,
                     MeasuredImage& image);

/// Ends a text at one of its cuts.
void cut_text(qwen_vl::SampleText& text, std::size_t k);

/// Plans a clip whose frames are all measured. @return CLIP_FRAMES, IMG_ASPECT, IMG_SIZE; `bad_media` names the frame.
Status plan_clip(const qwen_vl::QwenVl& model, MeasuredClip& clip, std::string& bad_media);

/// Renders and tokenises a row that waited, once its pictures are measured; does nothing to others. A box in a picture
/// whose size is not known is written as zeros, so that the text is at least as long as it will be.
/// @param shown  As in read_sample.
/// @return BOX_PLACE; USER_CODE for a picture whose size the user's own code changes; and as QwenVl::encode.
Status finish_text(const qwen_vl::QwenVl& model, MeasuredSample& sample, ShownText* shown = nullptr);

/// Once every picture is measured: finishes the text, plans the clips, then the sample's length; at least that, where a
/// size is not known. Of a sample without text `n_ids`, `n_trained` and the cuts are given. With
/// OverLong::kTruncateTurns a sample that is too long ends behind the last trained turn that fits; the media of what is
/// cut away are forgotten. @return SEQ_TOO_LONG, and as finish_text and plan_clip.
Status finish_measured(const OutputSettings& output, const qwen_vl::QwenVl& model, MeasuredSample& sample,
                       ShownText* shown = nullptr);

/// That a picture has another size than was planned with.
Status size_mismatch(const MeasuredImage& planned, qwen_vl::SizePx found);

/// Whether an object with this tag is another than the one whose header was read, as far as the tags tell.
bool has_changed(const MeasuredImage& planned, std::string_view etag);

/// Bytes of whole-picture buffers that decoding an object takes, by its header: 0 for a picture that passes in strips,
/// or that will be refused.
/// @param is_frame  Of a clip.
std::size_t decoder_bytes(const OutputSettings& output, const qwen_vl::QwenVl& model, bool is_frame,
                          std::span<const std::byte> object);

/// Decodes a whole object into the patches that were planned for it.
/// @param patches  (n_patches, 3, p, p) of `planned.plan`.
/// @return IMG_*; USER_CODE; MEDIA_SIZE_MISMATCH if the picture has another size than was planned with.
/// Threads: one per `decoder`.
Status decode_measured(const OutputSettings& output, const qwen_vl::QwenVl& model, const MeasuredImage& planned,
                       std::span<const std::byte> object, PatchDecoder& decoder, std::uint8_t* patches);

/// Decodes one frame of a clip into the patches that were planned for the clip: its place in time, and the rest of the
/// last temporal patch if it is the last.
/// @param scratch       One frame's patches; kept between calls, so that it does not allocate.
/// @param clip_patches  (plan.n_patches(), 3, t, p, p) of the whole clip. Frames write apart from each other.
/// @return As decode_measured. Threads: one per `decoder` and `scratch`; frames of a clip at the same time.
Status decode_frame(const OutputSettings& output, const qwen_vl::QwenVl& model, const MeasuredClip& clip,
                    std::size_t frame, std::span<const std::byte> object, PatchDecoder& decoder,
                    std::vector<std::uint8_t>& scratch, std::uint8_t* clip_patches);

}  // namespace stoker
