#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "data/lengths.h"
#include "model/qwen_vl/qwen_vl.h"
#include "pipeline/dataset.h"
#include "pipeline/measured.h"
#include "pipeline/settings.h"
#include "plan/order.h"

namespace stoker {

/// The ways between a measured sample, its lengths, and a sample whose lengths were told by others: what planning makes
/// of either is the same. Threads: any.

/// What can be sent and kept of a measured sample. Of a bad one only why.
SampleLengths lengths_of(const MeasuredSample& sample);

/// The two forms of what a row asks of a size.
SizeWish wish_of(const qwen_vl::SizeRequest& request);
qwen_vl::SizeRequest request_of(const SizeWish& wish);

/// A sample without text from lengths that another rank told. The user's own code is not called.
/// @return PLAN_MISMATCH if they cannot have come from these settings.
Result<MeasuredSample> measured_from(const SampleLengths& lengths, const OrderEntry& entry,
                                     const OutputSettings& output, const qwen_vl::QwenVl& model);

/// A window from samples that were measured here and lengths of the others: every place once.
/// @return PLAN_MISMATCH if one is missing or comes twice, and as measured_from.
Result<std::shared_ptr<MeasuredWindow>> assemble_window(const OrderWindow& window, std::vector<MeasuredSample> own,
                                                        std::span<const SampleLengths> told,
                                                        const OutputSettings& output, const qwen_vl::QwenVl& model);

/// Gives every picture of a sample its key, from the row that it was read from.
void key_pictures(const std::vector<MediaRef>& media, const StorageSettings& storage, MeasuredSample& sample);

/// Reads the row of a sample without text: ids and URLs. No header is read: sizes stay what the lengths say.
/// @return INDEX_DIR or PLAN_MISMATCH, by where the lengths came from, if the row is not one of these lengths; what
/// kept it from being read (MANIFEST, FETCH_IO, STOPPED). Never a bad sample.
Result<MeasuredSample> complete_sample(const LoaderSettings& settings, const Dataset& dataset,
                                       const qwen_vl::QwenVl& model, const MeasuredSample& known);

}  // namespace stoker
