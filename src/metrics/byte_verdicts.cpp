// Comparison element by element in parts on several threads, added in their order; sentences.
#include "metrics/byte_verdicts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "core/system/parallel.h"

namespace attnbench {
namespace {

std::span<const std::uint8_t> bytes_of(const Tensor& tensor) {
  return {reinterpret_cast<const std::uint8_t*>(tensor.bytes()), tensor.size_bytes()};
}

/// Steps between two e2m1 codes: codes of one sign are ordered like their values.
int e2m1_distance(int first, int second) {
  const auto place = [](int code) { return (code & 8) != 0 ? -(code & 7) : code & 7; };
  return std::abs(place(first) - place(second));
}

/// Sums over the elements of two tensors of one type.
struct ByteTotals {
  std::int64_t differing = 0, first = -1;
  std::int64_t nan = 0, inf = 0, finite = 0;
  E2m1Steps steps;
  double max_abs = 0, abs = 0, error2 = 0, expected2 = 0, actual2 = 0, product = 0;
};

void count_values(double x, double y, ByteTotals& totals) {
  totals.nan += std::isnan(x) ? 1 : 0;
  totals.inf += std::isinf(x) ? 1 : 0;
  if (!std::isfinite(x) || !std::isfinite(y)) return;
  ++totals.finite;
  totals.max_abs = std::max(totals.max_abs, std::abs(x - y));
  totals.abs += std::abs(x - y);
  totals.error2 += (x - y) * (x - y);
  totals.expected2 += y * y;
  totals.actual2 += x * x;
  totals.product += x * y;
}

/// Elements [begin, end).
ByteTotals count_part(const Tensor& actual, const Tensor& expected, ByteRule rule,
                      std::int64_t begin, std::int64_t end) {
  ByteTotals totals;
  const auto size = static_cast<std::int64_t>(dtype_size(actual.dtype()));
  const auto count = static_cast<std::size_t>(end - begin);
  const std::byte* const a = actual.bytes() + begin * size;
  const std::byte* const e = expected.bytes() + begin * size;
  const bool same = std::memcmp(a, e, count * static_cast<std::size_t>(size)) == 0;
  for (std::int64_t i = 0; !same && i < end - begin; ++i) {
    if (std::memcmp(a + i * size, e + i * size, static_cast<std::size_t>(size)) == 0) continue;
    if (totals.first < 0) totals.first = begin + i;
    ++totals.differing;
  }
  if (!same && rule == ByteRule::kE2m1Steps) {
    totals.steps = count_e2m1_steps({reinterpret_cast<const std::uint8_t*>(a), count},
                                    {reinterpret_cast<const std::uint8_t*>(e), count});
  }
  std::vector<float> x(count);
  load_floats(actual.dtype(), a, end - begin, x.data());
  std::vector<float> y;
  if (!same) {
    y.resize(count);
    load_floats(expected.dtype(), e, end - begin, y.data());
  }
  for (std::size_t i = 0; i < count; ++i) count_values(x[i], same ? x[i] : y[i], totals);
  return totals;
}

void add(const ByteTotals& part, ByteTotals& totals) {
  if (totals.first < 0) totals.first = part.first;
  totals.differing += part.differing;
  totals.nan += part.nan;
  totals.inf += part.inf;
  totals.finite += part.finite;
  totals.steps.different += part.steps.different;
  totals.steps.far += part.steps.far;
  totals.max_abs = std::max(totals.max_abs, part.max_abs);
  totals.abs += part.abs;
  totals.error2 += part.error2;
  totals.expected2 += part.expected2;
  totals.actual2 += part.actual2;
  totals.product += part.product;
}

/// In parts that are added in their order, so that the sums do not depend on the threads.
ByteTotals count_differences(const Tensor& actual, const Tensor& expected, ByteRule rule) {
  constexpr std::int64_t kPart = 1 << 16;
  const std::int64_t elements = actual.num_elements();
  std::vector<ByteTotals> parts(static_cast<std::size_t>((elements + kPart - 1) / kPart));
  for_each_chunk(elements, kPart, [&](std::int64_t begin, std::int64_t end) {
    parts[static_cast<std::size_t>(begin / kPart)] = count_part(actual, expected, rule, begin, end);
  });
  ByteTotals totals;
  for (const ByteTotals& part : parts) add(part, totals);
  return totals;
}

ErrorStats to_stats(const ByteTotals& totals, const Tensor& actual, const Tensor& expected) {
  const std::int64_t elements = actual.num_elements();
  // Of no finite elements, of zeros, and without an emulation.
  constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN();
  ErrorStats stats;
  const bool any = totals.finite > 0;
  stats.max_abs = any ? totals.max_abs : kNoFigure;
  stats.mean_abs = any ? totals.abs / static_cast<double>(totals.finite) : kNoFigure;
  stats.rms_rel = totals.expected2 > 0 ? std::sqrt(totals.error2 / totals.expected2) : kNoFigure;
  stats.nmse = stats.rms_rel * stats.rms_rel;
  const double norms = std::sqrt(totals.actual2) * std::sqrt(totals.expected2);
  stats.cosine = norms > 0 ? std::min(1.0, totals.product / norms) : kNoFigure;
  stats.err_ratio = kNoFigure;
  stats.matched_pct = elements == 0 ? 100
                                    : 100.0 * static_cast<double>(elements - totals.differing) /
                                          static_cast<double>(elements);
  stats.nan_count = totals.nan;
  stats.inf_count = totals.inf;
  if (totals.first >= 0) {
    stats.worst_index = coordinates(actual.shape(), totals.first);
    stats.worst_actual = actual.at(totals.first);
    stats.worst_expected = expected.at(totals.first);
  }
  return stats;
}

/// "[1, 2] is 0x7f, expected 0x80": the bytes of the first element that differs.
std::string describe_first(const Tensor& actual, const Tensor& expected, std::int64_t index) {
  const std::size_t size = dtype_size(actual.dtype());
  const auto hex = [&](const Tensor& tensor) {
    std::string digits;
    for (std::size_t i = size; i-- > 0;) {
      digits += fmt::format(
          "{:02x}",
          std::to_integer<int>(tensor.bytes()[static_cast<std::size_t>(index) * size + i]));
    }
    return digits;
  };
  return fmt::format("[{}] is 0x{}, expected 0x{}",
                     fmt::join(coordinates(actual.shape(), index), ", "), hex(actual),
                     hex(expected));
}

/// The first element whose bytes differ in two tensors of one type and size; -1 = none.
std::int64_t first_other_element(const Tensor& a, const Tensor& b) {
  constexpr std::int64_t kChunk = 4 << 20;
  std::atomic<bool> is_same{true};
  for_each_chunk(static_cast<std::int64_t>(a.size_bytes()), kChunk,
                 [&](std::int64_t begin, std::int64_t end) {
                   const auto bytes = static_cast<std::size_t>(end - begin);
                   if (std::memcmp(a.bytes() + begin, b.bytes() + begin, bytes) != 0)
                     is_same = false;
                 });
  if (is_same) return -1;
  const std::size_t size = dtype_size(a.dtype());
  std::size_t offset = 0;
  while (std::memcmp(a.bytes() + offset, b.bytes() + offset, size) == 0) offset += size;
  return static_cast<std::int64_t>(offset / size);
}

}  // namespace

E2m1Steps count_e2m1_steps(std::span<const std::uint8_t> actual,
                           std::span<const std::uint8_t> expected) {
  E2m1Steps steps;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (const int shift : {0, 4}) {
      const int distance = e2m1_distance(actual[i] >> shift & 15, expected[i] >> shift & 15);
      steps.different += distance > 0 ? 1 : 0;
      steps.far += distance > 1 ? 1 : 0;
      if (distance > 1 && steps.first_far < 0) steps.first_far = static_cast<std::int64_t>(i);
    }
  }
  return steps;
}

ByteVerdict compare_bytes(const Tensor& actual, const Tensor& expected, ByteRule rule) {
  const ByteTotals totals = count_differences(actual, expected, rule);
  ByteVerdict verdict;
  verdict.stats = to_stats(totals, actual, expected);
  verdict.differing = totals.differing;
  verdict.passed = totals.first < 0 || (rule == ByteRule::kE2m1Steps &&
                                        totals.steps.within_limit(actual.num_elements()));
  if (totals.first >= 0) verdict.first = describe_first(actual, expected, totals.first);
  return verdict;
}

std::string first_difference(const Tensor& actual, const Tensor& expected) {
  if (actual.shape() != expected.shape()) return "wrong extents";
  const std::int64_t first = first_other_element(actual, expected);
  return first < 0 ? "" : describe_first(actual, expected, first);
}

std::string check_equal_bytes(const std::string& name, const Tensor& actual, const Tensor& expected,
                              const std::string& source) {
  if (actual.shape() != expected.shape() || actual.dtype() != expected.dtype()) {
    return fmt::format("{}: expected {} bytes of {}, got {} of {}", name, expected.size_bytes(),
                       dtype_name(expected.dtype()), actual.size_bytes(),
                       dtype_name(actual.dtype()));
  }
  const auto wanted = bytes_of(expected);
  const auto given = bytes_of(actual);
  const auto [w, g] = std::mismatch(wanted.begin(), wanted.end(), given.begin());
  if (w == wanted.end()) return "";
  return fmt::format("{}: byte {} is {:#04x}, expected {:#04x}{}", name, w - wanted.begin(), *g, *w,
                     source);
}

std::string check_e2m1_codes(const std::string& name, const Tensor& actual,
                             const Tensor& expected) {
  const auto wanted = bytes_of(expected);
  const auto given = bytes_of(actual);
  const E2m1Steps steps = count_e2m1_steps(given, wanted);
  if (steps.far > 0) {
    const auto at = static_cast<std::size_t>(steps.first_far);
    return fmt::format("{}: byte {} is {:#04x}, expected {:#04x}", name, at, given[at], wanted[at]);
  }
  if (steps.within_limit(std::ssize(wanted))) return "";
  return fmt::format("{}: {} of {} codes are one step off, more than 0.1 %", name, steps.different,
                     2 * wanted.size());
}

std::string describe_change(const std::string& name, const Tensor& first, const Tensor& second) {
  if (first.size_bytes() != second.size_bytes()) {
    return fmt::format("{} has {} bytes, then {}", name, first.size_bytes(), second.size_bytes());
  }
  const std::int64_t index = first_other_element(first, second);
  if (index < 0) return "";
  return fmt::format("{}[{}] is {:.9g}, then {:.9g}", name,
                     fmt::join(coordinates(first.shape(), index), ", "), first.at(index),
                     second.at(index));
}

std::vector<std::int64_t> coordinates(const std::vector<std::int64_t>& shape, std::int64_t index) {
  std::vector<std::int64_t> result(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    result[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return result;
}

}  // namespace attnbench
