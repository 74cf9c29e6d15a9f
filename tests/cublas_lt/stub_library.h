// What the fake cuBLASLt was told last, and what it answers.
#pragma once

#include <cstddef>
#include <cstdint>

struct StubLibrary {
  int heuristic_status = 0;         // cublasStatus_t
  int num_candidates = 1;           // of the heuristic, the last is the only good one
  std::size_t workspace_bytes = 0;  // of the good one

  std::uint64_t max_workspace_bytes = 0;
  std::uint32_t reductions = 0;       // mask
  std::uint64_t implementations = 0;  // mask
  std::uint32_t alignment_a = 0;
  std::uint32_t alignment_b = 0;
  std::uint32_t alignment_c = 0;
  std::uint32_t alignment_d = 0;

  int num_described = 0;  // descriptions that were made and not destroyed
  int num_asked = 0;      // calls of the heuristic
  int num_products = 0;
};

extern "C" StubLibrary* stub_library();
