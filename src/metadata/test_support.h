// Shorthand for the tests of this folder: error classes, batches from lengths, a seeded generator.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"

namespace attnbench {

/// Code of the error that `call` throws ("E-VALUE", ...), "none" if it throws none.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error_code(error.kind());
  }
  return "none";
}

inline std::vector<int32_t> start_loc(const std::vector<int32_t>& query_lens) {
  std::vector<int32_t> starts = {0};
  for (const int32_t len : query_lens) starts.push_back(starts.back() + len);
  return starts;
}

/// Uniform integers in [low, high]; seeded, so every run draws the same cases.
class Draw {
 public:
  explicit Draw(uint32_t seed) : generator_(seed) {}
  int operator()(int low, int high) {
    return low + static_cast<int>(generator_() % static_cast<uint32_t>(high - low + 1));
  }

 private:
  std::mt19937 generator_;
};

}  // namespace attnbench
