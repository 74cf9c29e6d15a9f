// The candidates of 16-bit queries: kernels/attention/decode.cuh and prefill.cuh. Either can do
// most calls of attend(); decode is made for few rows, where the memory is the limit, and yields to
// prefill where there are more. Tiles and constants of both are in spec.h.
#include <string>

#include "core/error.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/spec.h"

namespace attnbench::cuda {
namespace {

/// The entry of decode.cuh for the operation.
const char* decode_entry(AttendOperation operation) {
  switch (operation) {
    case AttendOperation::kSplits:
      return "decode_splits";
    case AttendOperation::kSegments:
      return "decode_segments";
    default:
      return "decode";
  }
}

std::string decode_misfit(const Target& target, const AttendCall& call) {
  const bool is_whole = call.operation == AttendOperation::kWhole;
  if (!is_whole && call.operation != AttendOperation::kSplits &&
      call.operation != AttendOperation::kSegments) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  if (std::string reason = tiled_misfit(*call.params); !reason.empty()) return reason;
  // Why not in splits: what divides the keys of a batch-invariant run fixes its own order.
  if (is_whole && call.params->batch_invariant != 0) {
    return "its tiles depend on the size of the batch, which has to be batch invariant";
  }
  return decode_tile_misfit(target, *call.params);
}

/// What is bound by bandwidth is this kernel's, whatever is not, the next one's.
std::string decode_yields(const AttendCall& call) {
  if (call.operation != AttendOperation::kWhole || has_few_rows(*call.params)) return "";
  return fmt::format("{} query rows of a KV head, from {} on the next is faster",
                     max_packed_rows(*call.params), kMostDecodeRows + 1);
}

void launch_decode(Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  const int parts = call.num_parts();
  const AttendKernel kernel =
      decode_kernel(launcher.target(), params, decode_entry(call.operation), parts);
  const LaunchShape shape = row_tiles(kernel, params, parts);
  if (call.split != nullptr) return launch(launcher, kernel.spec, shape, params, *call.split);
  if (call.segments != nullptr) {
    return launch(launcher, kernel.spec, shape, params, *call.segments);
  }
  launch(launcher, kernel.spec, shape, params);
}

std::string prefill_misfit(const Target& target, const AttendCall& call) {
  if (call.operation != AttendOperation::kWhole) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  if (std::string reason = tiled_misfit(*call.params); !reason.empty()) return reason;
  return prefill_tile_misfit(target, *call.params);
}

void launch_prefill(Launcher& launcher, const AttendCall& call) {
  const AttendKernel kernel = prefill_kernel(launcher.target(), *call.params);
  launch(launcher, kernel.spec, row_tiles(kernel, *call.params, 1), *call.params);
}

}  // namespace

const AttendCandidate kDecodeCandidate{"decode", decode_misfit, decode_yields, launch_decode};
const AttendCandidate kPrefillCandidate{"prefill", prefill_misfit, nullptr, launch_prefill};

}  // namespace attnbench::cuda
