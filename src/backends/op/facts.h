// What is known of a single operation before anything is allocated: the reasons against it, the
// rules of the cache that it writes, the bytes that it cannot avoid, the lines of `explain` that
// native and users' operations share.
#pragma once

#include <string>
#include <vector>

#include "backends/backend.h"

namespace attnbench {

/// Every reason against the problem in the words of semantics §13; empty = supported. A problem of
/// another type than op has one reason, its type.
std::vector<std::string> op_refusals(const Problem& problem, const DeviceFacts& device);

/// Rules of a single operation that writes a cache: of the backend whose cache has that layout.
/// Codes depend on them, e.g. whether an e5m2 cache is stored as such or as e4m3; for other
/// operations they are the plain ones.
KernelRules op_kernel_rules(const Problem& problem);

/// Bytes that the operation has to read and write (contract §4): rates of operations are made from
/// it, so it must not depend on how a kernel goes about it. Every operand and every result
/// counts once, metadata of a row (a slot, a position) with it; elements that a fused operation
/// finds in registers count once for both of its halves. The problem is of type op.
///
///   reshape_and_cache    new rows, the codes and scales made of them, their slots
///   rope                 rotated elements twice, positions, the rows of the table that are used
///   rope_and_cache       both, without reading the rotated keys again
///   gather               entries, and what is written for them
///   merge, dcp_correct   partial outputs and LSEs, the result; sums over ranks in f32
///   quantize             values, codes, scales; so has output_quant
///   mm_quant             the same; values twice where the scale has to be found first
///   index_...            as index_traffic() says
///   metadata             block tables before and after the update, slots, lengths
double op_traffic(const Problem& problem);

/// Appends lines on tokens, layout of the cache and ranks, where the operation has them; what is
/// special to a kind of operation stands behind them.
void add_op_facts(const Problem& problem, Facts& facts);

}  // namespace attnbench
