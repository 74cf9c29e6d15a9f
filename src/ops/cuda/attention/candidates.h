// The kernels that attention operations choose from: which there are, in what order they are tried,
// and why one does not fit. A new kernel is a file under kernels/attention, a launcher file that
// defines its candidate, and a row of attend_candidates().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/params.h"
#include "kernels/params_int8.h"
#include "kernels/params_mla.h"
#include "kernels/params_tiles.h"
#include "ops/cuda/launcher.h"
#include "ops/ops.h"

namespace attnbench::cuda {

enum class AttendOperation { kWhole, kSplits, kSegments, kPlan, kSparse, kSparsePlan, kTiles };

/// "attend_splits", as Ops calls it.
std::string_view operation_name(AttendOperation operation);

/// One call of an attention operation. The arguments that the operation does not have are null.
struct AttendCall {
  AttendOperation operation = AttendOperation::kWhole;
  const attn::AttendParams* params = nullptr;
  const attn::SplitParams* split = nullptr;
  const attn::SegmentParams* segments = nullptr;
  const attn::PlanParams* plan = nullptr;
  const attn::SparseParams* sparse = nullptr;
  /// Of save_and_attend_int8(): what a candidate stores where its saves() says so.
  const attn::Int8CacheWriteParams* save = nullptr;
  const attn::TileListParams* list = nullptr;

  /// Parts that every request's keys are dealt to; 1 where a plan says it.
  int num_parts() const;
};

struct AttendCandidate {
  /// What --kernel and "BACKEND@NAME" call it.
  const char* name;
  /// Why the kernel cannot do the call ("head size 92 is not a multiple of 8"); empty where it can.
  std::string (*misfit)(const Target& target, const AttendCall& call);
  /// Why the kernel leaves a call that it could do to a later one unless it is forced; empty where
  /// it does not. Null = it never does.
  std::string (*yields)(const Target& target, const AttendCall& call);
  /// Queues the call, which fits.
  void (*launch)(Launcher& launcher, const AttendCall& call);
  /// What is wrong with options behind the name, "NAME:option=1:other=2"; empty where nothing is.
  /// Null = there are none to choose. launch() finds them in Launcher::forced_kernel().
  std::string (*options_misfit)(std::string_view options) = nullptr;
  /// launch() sees to SplitParams::arrivals; behind others their splits are combined by a launch.
  bool joins_splits = false;
  /// Whether launch() stores AttendCall::save too; otherwise that is done before it. Null = never.
  bool (*saves)(const Launcher& launcher, const AttendCall& call) = nullptr;
  /// Whether the kernel, forced with these options, leaves the call to the one that is chosen where
  /// none is forced. Null = never.
  bool (*leaves)(std::string_view options, const AttendCall& call) = nullptr;
  /// misfit() looks at KvParams::rope; to others calls with one are never given.
  bool knows_ropes = false;
  /// Whether options of the kernel, which is forced, ask for decodes in a call of their own
  /// (Ops::apart_use()). Null = never.
  bool (*attends_apart)(std::string_view options) = nullptr;
  /// misfit() looks at KvParams::value_block_table; likewise.
  bool knows_value_pages = false;
  /// Whether options of the kernel, which is forced, ask for codes that become 16 bits in front of
  /// it (Ops::wide_use()). Null = never.
  bool (*wants_wide)(std::string_view options) = nullptr;
};

/// In the order in which they are tried: the first that fits and does not yield is taken. The last
/// does whatever the others do not, so its reason is the one that a refused call is given.
const std::vector<const AttendCandidate*>& attend_candidates();

// One a launcher file.
extern const AttendCandidate kF32Candidate;            // f32.cpp
extern const AttendCandidate kDecodeCandidate;         // tiled.cpp
extern const AttendCandidate kPrefillCandidate;        // tiled.cpp
extern const AttendCandidate kLatentCandidate;         // hopper_latent.cpp
extern const AttendCandidate kLatentCodesCandidate;    // hopper_latent_codes.cpp
extern const AttendCandidate kGatheredCandidate;       // hopper_gathered.cpp
extern const AttendCandidate kGeneralCandidate;        // general.cpp
extern const AttendCandidate kHopperPrefillCandidate;  // hopper_prefill.cpp
extern const AttendCandidate kHopperTilesCandidate;    // hopper_tiles.cpp

/// Names in the order of attend_candidates().
std::vector<std::string> attend_candidate_names();

/// A forced kernel as commands name it, cut at its first ':'.
struct ForcedKernel {
  std::string_view name;
  std::string_view options;  // without the first ':'
};
ForcedKernel parse_forced_kernel(std::string_view forced);
/// The options of the forced kernel if that is the one of this name; else "".
std::string_view forced_options(std::string_view forced, std::string_view name);
/// Ops::tile_use(): by the forced kernel, and without one by whether any takes lists of the tiles
/// that a batch of `params` may have.
TileUse tile_use(const Target& target, const attn::AttendParams& params, std::string_view forced);
/// Ops::beside_use(), of hopper_tiles with its options where it is forced.
TileUse beside_use(const attn::AttendParams& params, std::string_view forced);
/// Ops::apart_use(): over e4m3 caches in heads of up to 128 columns where hopper_prefill would do
/// the whole batch, or by the option own_call=1 of decode where that is forced.
ApartUse apart_use(const Target& target, const attn::AttendParams& params, std::string_view forced);
/// Ops::takes_rope_apart(): whether the same candidate does the call with the rope that `params`
/// has and over whole keys, contiguous and on the same boundaries.
bool takes_rope_apart(const Target& target, const attn::AttendParams& params,
                      std::string_view forced);
/// Ops::wide_use(): where the Hopper kernel does it, over values alone where wide_values_pay(); by
/// the option wide=1 where that kernel is forced.
WideUse wide_use(const Target& target, const attn::AttendParams& params, std::string_view forced);
/// What is wrong with the options of a forced kernel whose name is known; empty where nothing is.
std::string forced_options_misfit(std::string_view forced);

/// What became of one candidate.
struct CandidateVerdict {
  std::string name;
  bool is_chosen = false;
  bool fits = false;
  std::string reason;  // why it does not fit, or yields; empty for others
  bool operator==(const CandidateVerdict&) const = default;
};

/// What became of all of them; none is chosen where none fits, or where the forced one does not.
struct AttendDecision {
  std::string operation;
  std::vector<CandidateVerdict> candidates;  // in the order of attend_candidates()
  bool operator==(const AttendDecision&) const = default;
};
AttendDecision decide_attend(const Target& target, const AttendCall& call, std::string_view forced);

/// The candidate that does the call: the one named `forced`, whose options are not looked at, or
/// with an empty name the first. Errors: E-UNSUPPORTED with the reason where the forced one does
/// not fit, or none does; E-INTERNAL for a name that is none.
const AttendCandidate& choose_attend(const Target& target, const AttendCall& call,
                                     std::string_view forced);

/// Whether some kernel attends in one pass with these parameters: choose_attend()'s errors.
void check_attend(const Target& target, const attn::AttendParams& params);

}  // namespace attnbench::cuda
