// The pipeline of FLASH_ATTN in both layouts: write the cache, attend (keys split for decoding, or
// in cascade), combine. FLASH_ATTN and FLASH_ATTN_IX are this with two rules; decode context
// parallelism is a pipeline of its own (attention/dcp_pipeline.h), chosen here.
//
// Steps: quantise_int8 (int8 levels), write_cache, then one of: attend | attend, combine (keys
// split) | plan, attend, combine (parts of a plan) | attend_prefix, attend_suffix, merge (cascade)
// | save_and_attend (int8 decode).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "metadata/batch.h"

namespace attnbench {

struct FlashRule {
  KernelRules kernels;
  /// Layout IX hands decodes and prefills to different calls; layout FA has one varlen call, whose
  /// keys are split when the whole batch is decodes. Either has two calls where the device is
  /// faster so (Ops::apart_use), and layout IX has one where no keys are split and it is not.
  bool separate_decodes = false;
};

/// What keys are split by.
struct SplitDevice {
  int num_sms;
  int sm;  // compute capability, 10 * major + minor
};

/// What the pipeline of a problem will do; pipeline and explain() share it.
struct FlashPlan {
  BatchSplit batch;
  int num_split_requests = 0;  // leading requests whose keys are split
  int num_splits = 1;
  SplitForm split_form = SplitForm::kSeparate;  // never kAuto
  int num_parts = 0;                            // of a plan
  std::string splits_reason;                    // of the three above
  bool is_apart = false;  // decodes have a call of their own, in front of the prefills'
  bool cascade = false;
  bool fused_save = false;  // int8 decode stores the new keys itself (§11.6)
};
/// On such a device; `apart`: decodes beside prefills have a call of their own, whatever the rule.
FlashPlan plan_flash(const Problem& problem, const FlashRule& rule, const SplitDevice& device,
                     bool apart = false);

/// Whether decodes beside prefills can have a call of their own: a decoder's batch of both, without
/// cascade, chunks of local attention and batch invariance, and nothing that was said about splits
/// (attention.num_splits: 1 keeps the one call). `plan` is that of plan_flash().
bool can_go_apart(const Problem& problem, const FlashPlan& plan);

/// Why the splits that attention.num_splits or attention.split_form ask for cannot be made of a
/// batch that is supported otherwise; empty = they can.
std::vector<std::string> split_refusals(const Problem& problem, const FlashRule& rule,
                                        const SplitDevice& device);

/// Under decode context parallelism the pipeline of dcp_pipeline.h. Errors: E-CAPACITY; with a
/// cascade, those of check_cascade_prefix().
std::unique_ptr<Pipeline> make_flash_pipeline(const Problem& problem, const BackendInputs& inputs,
                                              Ops& ops, const FlashRule& rule);

Facts explain_flash(const Problem& problem, const FlashRule& rule, const SplitDevice& device);

}  // namespace attnbench
