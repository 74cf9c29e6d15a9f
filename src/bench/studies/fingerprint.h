// What arithmetic a kernel does, told from its outputs: how many bits its sums keep, what type its
// probabilities have, how it rounds its output, and what that costs over long contexts.
//
// Two kernels of one name and one input type can be an order of magnitude apart in both speed and
// error, because one of them sums products of fp8 in some 13 bits and the other promotes them to
// float32. On values with mean zero nothing of it shows. The inputs here are made so that it does.
// They are ordinary tensors of the case's types: nothing is read of the kernel but its output, so
// a fingerprint is had of any backend.
//
// It accuses nobody: sums of 13 bits are a choice, and whether they are good enough is for the row
// rule to say on the values of a case.
#pragma once

#include <string>

#include "backends/backend.h"
#include "core/problem/problem.h"
#include "core/result/result.h"
#include "ops/ops.h"
#include "reference/attention.h"

namespace attnbench {

/// Empty, or why no fingerprint is taken of such a problem: it needs queries, keys and values that
/// can be given one by one.
std::string why_no_fingerprint(const Problem& problem);

/// Takes the fingerprint of the kernels that `backend` uses for the heads, types and kind of batch
/// (prefill or decode) of `problem`; masks and biases of the problem are left away. `longest` is
/// the largest number of keys over which the error on biased values is measured.
/// why_no_fingerprint() is empty. Parts that the backend refuses are left empty. Errors: those of
/// preparing and running a pipeline.
Fingerprint take_fingerprint(const Problem& problem, const Backend& backend, Ops& ops,
                             const DeviceFacts& device, const ReferenceOptions& options,
                             std::int64_t longest = 131072);

/// In a line: "sums keep 24 bits, P float32, output rounded to nearest, biased values 8k 0.05 %".
std::string describe_fingerprint(const Fingerprint& print);

}  // namespace attnbench
