// The work of a problem as its definition has it: FLOPs and bytes that no implementation can avoid
// (contract §4). Rates and percentages of a ceiling are made from these, so they are the same for
// every backend that computes the same thing, however it tiles, splits or pads; what an
// implementation does beyond them shows as a lower rate.
#pragma once

#include "backends/backend.h"
#include "core/problem/problem.h"
#include "metadata/mask/attention_math.h"

namespace attnbench {

/// FLOPs of the attention proper: 2*H*(D+Dv)*visible pairs, counted exactly, not by the area of the
/// mask. Projections, rotation and quantisation are steps of their own and not in it; a single
/// operation (type op) has none. `rules` decide what is visible; a batch that shows no key to any
/// row has 0.
///
/// MLA is counted as the capability of `backend` says: decodes over latents, prefills over expanded
/// heads (mla/plan.h). Without a backend, or for one that takes no part in MLA by a capability, as
/// MLA with the fewest limits does it.
double attention_flops(const Problem& problem, const KernelRules& rules);
double attention_flops(const Problem& problem, const Backend& backend);

/// Bytes in the types that they are stored in: e4m3 keys count one byte, scales of a token and head
/// are added, one scale of a whole tensor is not. Weights, slot mappings and block tables are left
/// out: they are small beside the rest, and how often they are read is up to the implementation.
struct Traffic {
  /// Unique live K and V + Q + O. Live: seen by at least one row of the step. The pages of a shared
  /// prefix are read once by whoever does it best, so they count once.
  double unique_bytes = 0;
  /// Live K and V of every request, a shared prefix as often as it is used.
  double kv_bytes = 0;
};
/// Rules and backend are read as above: rules decide the types of cache and query and which keys a
/// window leaves alive; a backend, for MLA, what is latent and what expanded. Of a single
/// operation: all that it has to read and write, as unique_bytes.
Traffic attention_traffic(const Problem& problem, const KernelRules& rules);
Traffic attention_traffic(const Problem& problem, const Backend& backend);

}  // namespace attnbench
