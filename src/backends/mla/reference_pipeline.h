// REFERENCE's share of MLA: float64 latents and heads straight from the definitions, as a pipeline,
// so that the judge of the other backends can be run, timed and saved like one of them. It reads
// the values behind the cache as they are after dequantisation, never pages or codes; it has no
// limits of size or device, only of meaning.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/mla/capability.h"

namespace attnbench {

/// What REFERENCE computes: what MLA does, with or without lists of keys.
MlaCapability mla_reference_capability(const Problem& problem);

/// What has no meaning for MLA, whoever computes it.
std::vector<std::string> mla_reference_refusals(const Problem& problem);
/// The float64 reference as a pipeline of one step over all rows.
std::unique_ptr<Pipeline> make_mla_reference_pipeline(const Problem& problem,
                                                      const BackendInputs& inputs);

}  // namespace attnbench
