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
KernelRules op_kernel_rules(const Problem& problem);

/// Bytes that the operation has to read and write (contract §4). Every operand and every result
/// counts once, metadata of a row (a slot, a position) with it; elements that a fused operation
/// finds in registers count once for both of its halves. The problem is of type op.
double op_traffic(const Problem& problem);

/// Tokens, layout of the cache and ranks.
void add_op_facts(const Problem& problem, Facts& facts);

}  // namespace attnbench
