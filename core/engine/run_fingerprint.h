#pragma once

#include <string>

#include "model/qwen_vl/qwen_vl.h"
#include "pipeline/settings.h"

namespace stoker {

/// "name=hash ..." for every setting that decides what comes out: what checkpoints are held against, and what the
/// processes of a run must have in common.
/// @param data         Dataset::fingerprint, or what stands for it before it is open.
/// @param model_facts  QwenVl::fingerprint, likewise. @param model  Null before it is open.
std::string run_fingerprint(const OutputSettings& output, const std::string& data, const std::string& model_facts,
                            const qwen_vl::QwenVl* model);

}  // namespace stoker
