// The pipeline of FLASH_ATTN in both layouts: write the cache, attend (keys split for decoding, or
// in cascade), combine.
#pragma once

#include <memory>

#include "backends/backend.h"
#include "metadata/batch.h"

namespace attnbench {

struct FlashRule {
  KernelRules kernels;
  /// Layout IX hands decodes and prefills to different calls; layout FA has one varlen call, whose
  /// keys are split when the whole batch is decodes.
  bool separate_decodes = false;
};

/// What the pipeline of a problem will do; pipeline and explain() share it.
struct FlashPlan {
  BatchSplit batch;
  int num_split_requests = 0;  // leading requests whose keys are split
  int num_splits = 1;
  bool cascade = false;
  bool fused_save = false;  // int8 decode stores the new keys itself (§11.6)
};
/// On a device of `num_sms` multiprocessors.
FlashPlan plan_flash(const Problem& problem, const FlashRule& rule, int num_sms);

std::unique_ptr<Pipeline> make_flash_pipeline(const Problem& problem, const BackendInputs& inputs,
                                              Ops& ops, const FlashRule& rule);

Facts explain_flash(const Problem& problem, const FlashRule& rule, int num_sms);

}  // namespace attnbench
