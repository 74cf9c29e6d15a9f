// Verdicts on bytes: caches, codes and scales have one right answer, so they are compared as they
// lie in memory and not as values. Everything here is a function of two tensors; which bytes are
// expected is for the caller to know, and so is what becomes of the sentence.
//
// There is one exception to equality. The codes of NVFP4 (e2m1, two in a byte, the first in the low
// four bits) come from a division that hardware does approximately, so a value near a border may
// get the code beside the right one: one step, in at most 0.1 % of the codes (semantics §9.4). Its
// scales, and codes of every other format, must be equal.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/result/result.h"
#include "core/tensor.h"

namespace attnbench {

enum class ByteRule { kEqual, kE2m1Steps };

/// How far the e2m1 codes of two arrays of equal length are apart.
struct E2m1Steps {
  std::int64_t different = 0;   // codes that are not equal
  std::int64_t far = 0;         // of them, more than one step
  std::int64_t first_far = -1;  // the first byte with such a code; -1 = none

  /// Of `bytes` bytes, two codes each.
  bool within_limit(std::int64_t bytes) const { return far == 0 && different * 1000 <= 2 * bytes; }
};
E2m1Steps count_e2m1_steps(std::span<const std::uint8_t> actual,
                           std::span<const std::uint8_t> expected);

/// What compare_bytes() finds.
struct ByteVerdict {
  bool passed = false;
  std::int64_t differing = 0;  // elements, also those that the rule allows
  std::string first;           // "[1, 2] is 0x7f, expected 0x80": the first that differs; or empty
  /// Over the values that the bytes stand for, where both are finite. matched_pct counts equal
  /// bytes; worst_index is the first element that differs. err_ratio does not exist (NaN), and
  /// checked_rows and rule are left to the caller.
  ErrorStats stats;
};

/// Tensors of one type and shape; the sums do not depend on the number of threads.
ByteVerdict compare_bytes(const Tensor& actual, const Tensor& expected, ByteRule rule);

/// Empty, or the first element of `actual` that is not the same bytes as in `expected`, as in
/// ByteVerdict::first. Tensors of other extents: "wrong extents".
std::string first_difference(const Tensor& actual, const Tensor& expected);

/// Empty, or a sentence that begins with `name`: other size or type, or the first wrong byte.
/// `source` tells where the expectation comes from, as in " from the 16-bit output".
std::string check_equal_bytes(const std::string& name, const Tensor& actual, const Tensor& expected,
                              const std::string& source);

/// The same for e2m1 codes in as many bytes: the first that is too far, or that too many differ.
std::string check_e2m1_codes(const std::string& name, const Tensor& actual, const Tensor& expected);

/// Empty, or a sentence that names the first element in which the tensor of a second run differs
/// from that of the first (semantics §18.2). Equal NaN are equal; 0 and -0 are not.
std::string describe_change(const std::string& name, const Tensor& first, const Tensor& second);

/// Coordinates of element `index` of a row-major tensor.
std::vector<std::int64_t> coordinates(const std::vector<std::int64_t>& shape, std::int64_t index);

}  // namespace attnbench
