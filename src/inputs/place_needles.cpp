// Sums run in one order and use nothing but +, *, / and sqrt, so that the bytes are the same on
// every machine.
#include "inputs/place_needles.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "core/system/parallel.h"
#include "metadata/parts/cascade.h"

namespace attnbench {
namespace {

constexpr double kValueMean = 0.5;
/// Share of an ordinary squared length that stays as it was drawn, whatever the needles need.
constexpr double kLeastRest = 0.09;

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void add(std::span<double> sum, double factor, std::span<const double> values) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factor * values[i];
}

/// Factors x with sum_j (keys_i . keys_j) x_j = dots_i, of one or two keys; of the first one where
/// two are nearly parallel.
std::vector<double> solve(std::span<const std::vector<double>> keys, std::span<const double> dots) {
  constexpr double kNearlyParallel = 1e-2;
  std::vector<double> factors(keys.size(), 0.0);
  const double first = dot(keys[0], keys[0]);
  if (!(first > 0)) return factors;
  factors[0] = dots[0] / first;
  if (keys.size() < 2) return factors;
  const double second = dot(keys[1], keys[1]);
  const double both = dot(keys[0], keys[1]);
  const double determinant = first * second - both * both;
  if (!(determinant > kNearlyParallel * first * second)) return factors;
  factors[0] = (dots[0] * second - dots[1] * both) / determinant;
  factors[1] = (dots[1] * first - dots[0] * both) / determinant;
  return factors;
}

/// Needles of one head of a row.
using HeadNeedles = std::span<const Needle>;

std::vector<HeadNeedles> by_head(std::span<const Needle> needles) {
  std::vector<HeadNeedles> groups;
  for (std::size_t begin = 0; begin < needles.size();) {
    std::size_t end = begin + 1;
    while (end < needles.size() && needles[end].token == needles[begin].token &&
           needles[end].head == needles[begin].head) {
      ++end;
    }
    groups.push_back(needles.subspan(begin, end - begin));
    begin = end;
  }
  return groups;
}

/// Rows of the keys [S] that are the key of a needle: its own, and those of other requests where
/// the prefix is shared.
template <typename Body>
void for_each_copy(const Problem& problem, const std::vector<std::int64_t>& key_start_loc,
                   std::int64_t request, std::int64_t key, const Body& body) {
  for (const PrefixGroup& group : prefix_groups(problem)) {
    const bool is_shared = key < group.num_keys && request >= group.first_request &&
                           request < group.first_request + group.num_requests;
    if (!is_shared) continue;
    for (std::int64_t i = 0; i < group.num_requests; ++i) {
      const auto b = static_cast<std::size_t>(group.first_request + i);
      if (key < problem.batch[b].seq_len) body(key_start_loc[b] + key);
    }
    return;
  }
  body(key_start_loc[static_cast<std::size_t>(request)] + key);
}

/// Factors of keys that are to be longer, by (row of the keys, KV head).
using Lengths = std::map<std::pair<std::int64_t, std::int64_t>, double>;

Lengths lengths_of(const Problem& problem, const std::vector<std::int64_t>& key_start_loc,
                   std::span<const Needle> needles, std::int64_t group) {
  Lengths lengths;
  for (const Needle& needle : needles) {
    if (needle.length <= 1) continue;
    for_each_copy(problem, key_start_loc, needle.request, needle.key, [&](std::int64_t row) {
      double& length = lengths[{row, needle.head / group}];
      length = std::max(length, needle.length);
    });
  }
  return lengths;
}

void scale_elements(Tensor& tensor, std::int64_t first, std::int64_t count, double factor) {
  for (std::int64_t i = first; i < first + count; ++i) {
    tensor.set(i, static_cast<float>(static_cast<double>(tensor.at(i)) * factor));
  }
}

std::vector<double> elements(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  load_floats(tensor.dtype(),
              tensor.bytes() + first * static_cast<std::int64_t>(dtype_size(tensor.dtype())), count,
              values.data());
  return {values.begin(), values.end()};
}

/// Squared length of an ordinary query.
double ordinary_square(const Problem& problem) {
  return problem.attention.head_size * problem.inputs.std * problem.inputs.std;
}

/// Turns the query of one head; key_of(needle) gives the key as the head sees it.
template <typename KeyOf>
void turn_query(const Problem& problem, HeadNeedles needles, Tensor& query, const KeyOf& key_of) {
  const AttentionSpec& a = problem.attention;
  const std::int64_t first =
      (needles[0].token * a.num_heads + needles[0].head) * std::int64_t{a.head_size};
  std::vector<double> row = elements(query, first, a.head_size);
  std::vector<std::vector<double>> keys;
  std::vector<double> dots;
  for (const Needle& needle : needles) {
    keys.push_back(key_of(needle));
    dots.push_back(needle.score / a.scale);
  }
  align_query(keys, dots, ordinary_square(problem), row);
  for (std::size_t d = 0; d < row.size(); ++d) {
    query.set(first + static_cast<std::int64_t>(d), static_cast<float>(row[d]));
  }
}

/// W_UK of one head [P, L] as double.
std::vector<double> head_weights(const MlaInputs& inputs, int head) {
  const std::int64_t size = inputs.w_uk.dim(1) * inputs.w_uk.dim(2);
  return elements(inputs.w_uk, head * size, size);
}

/// [P + R] of a latent entry as a head sees it.
std::vector<double> projected_key(const MlaInputs& inputs, std::span<const double> weights,
                                  std::int64_t row) {
  const std::int64_t rank = inputs.kv_c.dim(1);
  const std::vector<double> latent = elements(inputs.kv_c, row * rank, rank);
  std::vector<double> key;
  for (std::int64_t p = 0; p < inputs.w_uk.dim(1); ++p) {
    key.push_back(
        dot(weights.subspan(static_cast<std::size_t>(p * rank), static_cast<std::size_t>(rank)),
            latent));
  }
  const std::int64_t rope = inputs.k_pe.dim(1);
  const std::vector<double> tail = elements(inputs.k_pe, row * rope, rope);
  key.insert(key.end(), tail.begin(), tail.end());
  return key;
}

}  // namespace

void align_query(std::span<const std::vector<double>> keys, std::span<const double> dots,
                 double square, std::span<double> query) {
  std::vector<double> now;
  for (const std::vector<double>& key : keys) now.push_back(dot(key, query));
  const std::vector<double> drawn = solve(keys, now);
  const std::vector<double> wanted = solve(keys, dots);
  std::vector<double> along(query.size(), 0.0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    add(query, -drawn[i], keys[i]);
    add(along, wanted[i], keys[i]);
  }
  const double rest = dot(query, query);
  const double left = std::max(square - dot(along, along), kLeastRest * square);
  const double factor = rest > 0 ? std::min(std::sqrt(left / rest), 1.0) : 0.0;
  for (std::size_t d = 0; d < query.size(); ++d) query[d] = query[d] * factor + along[d];
}

void place_needles(const Problem& problem, AttentionInputs& inputs) {
  if (inputs.shapes_only) return;
  const std::vector<Needle> needles = plan_needles(problem);
  const AttentionSpec& a = problem.attention;
  const std::int64_t group = a.num_heads / a.num_kv_heads;
  const std::int64_t size = a.head_size;
  const auto first_of = [&](std::int64_t row, std::int64_t kv_head) {
    return (row * a.num_kv_heads + kv_head) * size;
  };
  for (const auto& [place, length] : lengths_of(problem, inputs.key_start_loc, needles, group)) {
    scale_elements(inputs.key, first_of(place.first, place.second), size, length);
  }
  const std::vector<HeadNeedles> groups = by_head(needles);
  for_each_chunk(static_cast<std::int64_t>(groups.size()), 64, [&](auto begin, auto end) {
    for (std::int64_t i = begin; i < end; ++i) {
      turn_query(problem, groups[static_cast<std::size_t>(i)], inputs.query,
                 [&](const Needle& needle) {
                   const std::int64_t row =
                       inputs.key_start_loc[static_cast<std::size_t>(needle.request)] + needle.key;
                   return elements(inputs.key, first_of(row, needle.head / group), size);
                 });
    }
  });
}

void place_needles(const Problem& problem, MlaInputs& inputs) {
  if (problem.inputs.shapes_only) return;
  ListedKeys listed;
  if (problem.mla.sparse_topk) {
    listed = {inputs.topk_indices.data<std::int32_t>(),
              static_cast<std::size_t>(inputs.topk_indices.num_elements())};
  }
  const std::vector<Needle> needles = plan_needles(problem, listed);
  // All heads read the same entries.
  const Lengths lengths =
      lengths_of(problem, inputs.key_start_loc, needles, problem.attention.num_heads);
  for (const auto& [place, length] : lengths) {
    const std::int64_t row = place.first;
    scale_elements(inputs.kv_c, row * inputs.kv_c.dim(1), inputs.kv_c.dim(1), length);
    scale_elements(inputs.k_pe, row * inputs.k_pe.dim(1), inputs.k_pe.dim(1), length);
  }
  // By head, because the weights of one are large.
  std::vector<std::vector<HeadNeedles>> heads(
      static_cast<std::size_t>(problem.attention.num_heads));
  for (const HeadNeedles& group : by_head(needles)) {
    heads[static_cast<std::size_t>(group[0].head)].push_back(group);
  }
  for_each_chunk(problem.attention.num_heads, 1, [&](auto begin, auto end) {
    for (std::int64_t head = begin; head < end; ++head) {
      const std::vector<double> weights = head_weights(inputs, static_cast<int>(head));
      for (const HeadNeedles& group : heads[static_cast<std::size_t>(head)]) {
        turn_query(problem, group, inputs.query, [&](const Needle& needle) {
          return projected_key(
              inputs, weights,
              inputs.key_start_loc[static_cast<std::size_t>(needle.request)] + needle.key);
        });
      }
    }
  });
}

bool has_needles(const InputsSpec& spec) {
  return spec.needles || spec.distribution == Distribution::kProbe;
}

double value_mean(const InputsSpec& spec) {
  return spec.mean + (spec.distribution == Distribution::kProbe ? kValueMean * spec.std : 0.0);
}

}  // namespace attnbench
