// Values for the list of needles.h: the query of a head is turned towards the keys that are its
// needles. It keeps the length of an ordinary one, what is left of it stays as it was drawn, and
// keys stay as they were drawn too, but for few dimensions and long rows, where an ordinary query
// cannot reach the score: there the key is made longer. So heads that read the same keys, tokens
// that share a page and requests that share a prefix can all have needles of their own.
#pragma once

#include <span>
#include <vector>

#include "core/problem/problem.h"
#include "inputs/make_inputs.h"
#include "inputs/mla_inputs.h"
#include "inputs/needles.h"

namespace attnbench {

/// Turns `query` [D] so that its dot product with each of `keys` (one or two of [D]) is the one of
/// `dots`, and its squared length about `square` where those allow: it is never longer than what
/// the dot products need and a tenth of `square`, and what is not along the keys never grows.
///
/// Of two keys that are nearly parallel only the first counts, and a key of zeros has no dot
/// product to reach; the query then loses nothing but length.
void align_query(std::span<const std::vector<double>> keys, std::span<const double> dots,
                 double square, std::span<double> query);

/// Changes drawn inputs: first the keys that are to be longer, then the query of every (row, head)
/// of the list. The same bytes on every machine and for any number of threads. Nothing where there
/// are no needles or only shapes are wanted.
void place_needles(const Problem& problem, AttentionInputs& inputs);
/// The same for latents: the key of a head is its projection of the latent and the rope part, so
/// each head has needles of its own although all read the same entries.
void place_needles(const Problem& problem, MlaInputs& inputs);

/// Whether a draw has needles: the probe, and what asks for them.
bool has_needles(const InputsSpec& spec);

/// Mean of values, or latents: inputs.mean, and half a deviation more in the probe. Sums of P V
/// then grow with the keys, as those of a model do, and a kernel whose sums lose their low bits is
/// seen.
double value_mean(const InputsSpec& spec);

}  // namespace attnbench
