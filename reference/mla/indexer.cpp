// Positions are found from slots by the block table, so a slot of another request is one that is
// not there.
#include "reference/mla/indexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "core/numbers/dtype.h"
#include "reference/mla/cache_entry.h"

namespace attnbench {
namespace {

constexpr std::int64_t kWidth = kIndexKeySize;
constexpr std::int64_t kScaleBytes = sizeof(float);

std::byte* block_of(Tensor& cache, std::int64_t block) {
  return cache.bytes() + block * cache.dim(1);
}

/// NaN counts as less than every number.
double comparable(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<double>::infinity() : logit;
}

}  // namespace

void store_index_key(const Tensor& keys, std::int64_t row, bool ue8m0, std::int64_t block_size,
                     std::int64_t slot, Tensor& cache) {
  std::array<float, kIndexKeySize> values{};
  for (std::int64_t d = 0; d < kWidth; ++d) {
    values[static_cast<std::size_t>(d)] = keys.at(row * kWidth + d);
  }
  const IndexKey key = quantise_index_key(values, ue8m0);
  std::byte* const block = block_of(cache, slot / block_size);
  const std::int64_t offset = slot % block_size;
  std::memcpy(block + offset * kWidth, key.codes.data(), key.codes.size());
  std::memcpy(block + block_size * kWidth + offset * kScaleBytes, &key.scale, sizeof key.scale);
}

std::vector<double> index_logits_of(const IndexRow& row) {
  const std::int64_t heads = row.query.dim(1);
  std::vector<double> logits(static_cast<std::size_t>(std::max<std::int64_t>(row.visible, 0)));
  std::array<float, kIndexKeySize> key{};
  for (std::size_t j = 0; j < logits.size(); ++j) {
    const auto position = static_cast<std::int64_t>(j);
    const std::int64_t block = row.blocks[j / static_cast<std::size_t>(row.block_size)];
    const std::byte* data = row.cache.bytes() + block * row.cache.dim(1);
    const std::int64_t offset = position % row.block_size;
    load_floats(Dtype::kE4M3, data + offset * kWidth, key.size(), key.data());
    float scale = 0.0f;
    std::memcpy(&scale, data + row.block_size * kWidth + offset * kScaleBytes, sizeof scale);
    double sum = 0;
    for (std::int64_t h = 0; h < heads; ++h) {
      double product = 0;
      for (std::int64_t d = 0; d < kWidth; ++d) {
        product += static_cast<double>(row.query.at((row.token * heads + h) * kWidth + d)) *
                   static_cast<double>(key[static_cast<std::size_t>(d)]);
      }
      sum += static_cast<double>(row.weights.at(row.token * heads + h)) * std::max(product, 0.0);
    }
    logits[j] = sum * static_cast<double>(scale);
  }
  return logits;
}

std::string wrong_choice(std::span<const float> logits, std::span<const std::int32_t> slots,
                         std::span<const std::int32_t> blocks, std::int64_t block_size,
                         double rounding) {
  std::unordered_map<std::int64_t, std::size_t> positions;
  for (std::size_t j = 0; j < logits.size(); ++j) {
    const auto block = static_cast<std::int64_t>(blocks[j / static_cast<std::size_t>(block_size)]);
    positions[block * block_size + static_cast<std::int64_t>(j) % block_size] = j;
  }
  std::vector<bool> is_chosen(logits.size());
  std::size_t count = 0;
  for (std::size_t k = 0; k < slots.size(); ++k) {
    if (slots[k] < 0) continue;
    const auto found = positions.find(slots[k]);
    if (found == positions.end()) {
      return fmt::format("entry {} is slot {}, which holds no key that the token sees", k,
                         slots[k]);
    }
    if (is_chosen[found->second]) {
      return fmt::format("entry {} is slot {} of position {}, which is chosen already", k, slots[k],
                         found->second);
    }
    is_chosen[found->second] = true;
    ++count;
  }
  const std::size_t wanted = std::min(slots.size(), logits.size());
  if (count != wanted) return fmt::format("{} keys are chosen, expected {}", count, wanted);
  std::size_t least = logits.size(), largest = logits.size();
  for (std::size_t j = 0; j < logits.size(); ++j) {
    std::size_t& place = is_chosen[j] ? least : largest;
    const bool is_other = place == logits.size() ||
                          (is_chosen[j] ? comparable(logits[j]) < comparable(logits[place])
                                        : comparable(logits[j]) > comparable(logits[place]));
    if (is_other) place = j;
  }
  if (least == logits.size() || largest == logits.size()) return "";
  const double chosen = comparable(logits[least]), left = comparable(logits[largest]);
  if (left <= chosen || left - chosen <= rounding) return "";
  return fmt::format("position {} with logit {:.6g} is chosen, position {} with {:.6g} is not",
                     least, chosen, largest, left);
}

}  // namespace attnbench
