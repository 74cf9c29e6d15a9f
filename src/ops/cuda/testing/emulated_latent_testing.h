// The instructions of kernels/ptx/wgmma_latent.cuh on emulated threads: products of latents queued
// as a device may run them, late, with operands in shared memory and in registers.
#pragma once

#include <array>
#include <cstring>
#include <stdexcept>

#include "ops/cuda/testing/emulated_hopper_testing.h"

// Under other names, as in emulated_hopper_testing.h.
#define pin ptx_pin
#define num_ctas ptx_num_ctas
#define this_cta ptx_this_cta
#define this_thread ptx_this_thread
#define store_word ptx_store_word
#define store_words ptx_store_words
#define load_words ptx_load_words
#define load_two_words ptx_load_two_words
#define check_shared_base ptx_check_shared_base
#define multiply_scores ptx_multiply_scores
#define multiply_values ptx_multiply_values
#define multiply_few_scores ptx_multiply_few_scores
#define multiply_few_values ptx_multiply_few_values
#define multiply_code_scores ptx_multiply_code_scores
#define multiply_code_values ptx_multiply_code_values
#include "kernels/ptx/wgmma_codes.cuh"
#undef pin
#undef num_ctas
#undef this_cta
#undef this_thread
#undef store_word
#undef store_words
#undef load_words
#undef load_two_words
#undef check_shared_base
#undef multiply_scores
#undef multiply_values
#undef multiply_few_scores
#undef multiply_few_values
#undef multiply_code_scores
#undef multiply_code_values

namespace attn {

template <class Registers>
void pin(Registers&) {}
inline int num_ctas() { return static_cast<int>(gridDim.x); }
inline int this_cta() { return static_cast<int>(blockIdx.x); }
inline int this_thread() { return static_cast<int>(threadIdx.x); }
inline void store_word(u32 address, u32 word) {
  std::memcpy(own_memory(address), &word, sizeof word);
}
inline void store_words(u32 address, const u32 (&words)[4]) {
  if (address % 16 != 0) throw std::logic_error("a store off 16 bytes");
  std::memcpy(own_memory(address), words, sizeof words);
}
inline void load_words(u32 address, u32 (&words)[4]) {
  if (address % 16 != 0) throw std::logic_error("a load off 16 bytes");
  std::memcpy(words, own_memory(address), sizeof words);
}
inline void load_two_words(u32 address, u32 (&words)[2]) {
  if (address % 8 != 0) throw std::logic_error("a load off 8 bytes");
  std::memcpy(words, own_memory(address), sizeof words);
}
inline void check_shared_base(u32) {}

/// One step of a product, for this thread's accumulators of 4 * blocks: `left(row, k)` and
/// `right(k, column)`.
template <class Left, class Right>
void add_step(float* sums, int blocks, bool adds, const Left& left, const Right& right) {
  const int thread = static_cast<int>(threadIdx.x % 128);
  for (int half = 0; half < 2; ++half) {
    const int row = thread / 32 * 16 + half * 8 + thread % 32 / 4;
    double of_row[16];
    for (int k = 0; k < 16; ++k) of_row[k] = left(row, k);
    for (int j = 0; j < blocks; ++j) {
      for (int i = 0; i < 2; ++i) {
        double sum = 0;
        for (int k = 0; k < 16; ++k) sum += of_row[k] * right(k, 8 * j + thread % 4 * 2 + i);
        float& to = sums[4 * j + 2 * half + i];
        to = static_cast<float>((adds ? double{to} : 0.0) + sum);
      }
    }
  }
}

/// Element (row, k) of a left operand that the lanes of a warp hold in registers.
template <Element kElement>
class HeldOperand {
 public:
  struct Words {
    u32 of[4];
  };
  explicit HeldOperand(const u32* mine)
      : lanes_(
            attnbench::cuda::running_cta->exchange(Words{{mine[0], mine[1], mine[2], mine[3]}})) {}
  double at(int row, int k) const {
    const auto lane = static_cast<std::size_t>(row % 8 * 4 + k % 8 / 2);
    const u32 word = lanes_[lane].of[k / 8 * 2 + row % 16 / 8];
    return attnbench::cuda::number_of<kElement>(static_cast<u16>(word >> k % 2 * 16));
  }

 private:
  std::array<Words, 32> lanes_;
};

template <Element kElement>
void queue_product(float* sums, int blocks, bool adds, u64 left, u64 right, bool across) {
  attnbench::cuda::running_hopper->products().open.push_back([=] {
    const attnbench::cuda::EmulatedOperand a(left);
    const attnbench::cuda::EmulatedOperand b(right);
    add_step(
        sums, blocks, adds,
        [&](int row, int k) {
          return attnbench::cuda::number_of<kElement>(a.template along<u16>(row, k));
        },
        [&](int k, int column) {
          return attnbench::cuda::number_of<kElement>(across ? b.template across<u16>(k, column)
                                                             : b.template along<u16>(column, k));
        });
  });
}
template <Element kElement>
void queue_product(float* sums, int blocks, bool adds, const u32* left, u64 right, bool across) {
  attnbench::cuda::running_hopper->products().open.push_back([=] {
    const HeldOperand<kElement> a(left);
    const attnbench::cuda::EmulatedOperand b(right);
    add_step(
        sums, blocks, adds, [&](int row, int k) { return a.at(row, k); },
        [&](int k, int column) {
          return attnbench::cuda::number_of<kElement>(across ? b.template across<u16>(k, column)
                                                             : b.template along<u16>(column, k));
        });
  });
}
template <Element kElement>
void multiply_scores(float (&sums)[32], u64 left, u64 right, bool adds) {
  queue_product<kElement>(sums, 8, adds, left, right, false);
}
template <Element kElement>
void multiply_scores(float (&sums)[32], const u32 (&left)[4], u64 right, bool adds) {
  queue_product<kElement>(sums, 8, adds, left, right, false);
}
template <Element kElement>
void multiply_values(float (&sums)[128], u64 left, u64 right) {
  queue_product<kElement>(sums, 32, true, left, right, true);
}
template <Element kElement>
void multiply_values(float (&sums)[128], const u32 (&left)[4], u64 right) {
  queue_product<kElement>(sums, 32, true, left, right, true);
}

template <Element kElement>
void multiply_few_scores(float (&sums)[8], u64 left, u64 right, bool adds) {
  queue_product<kElement>(sums, 2, adds, left, right, false);
}
template <Element kElement>
void multiply_few_values(float (&sums)[8], u64 left, u64 right) {
  float* const to = sums;
  attnbench::cuda::running_hopper->products().open.push_back([=] {
    const attnbench::cuda::EmulatedOperand a(left);
    const attnbench::cuda::EmulatedOperand b(right);
    add_step(
        to, 2, true,
        [&](int row, int k) {
          return attnbench::cuda::number_of<kElement>(a.template across<u16>(k, row));
        },
        [&](int k, int column) {
          return attnbench::cuda::number_of<kElement>(b.template along<u16>(column, k));
        });
  });
}

/// Steps of 32 codes are two of 16.
template <int kRows>
void multiply_code_scores(float (&sums)[kRows / 2], u64 left, u64 right, bool adds) {
  float* const to = sums;
  attnbench::cuda::running_hopper->products().open.push_back([=] {
    const attnbench::cuda::EmulatedOperand a(left);
    const attnbench::cuda::EmulatedOperand b(right);
    for (int first = 0; first < 32; first += 16) {
      add_step(
          to, kRows / 8, adds || first != 0,
          [&](int row, int k) {
            return attnbench::cuda::number_of<Element::kE4M3>(a.template along<u8>(row, first + k));
          },
          [&](int k, int column) {
            return attnbench::cuda::number_of<Element::kE4M3>(
                b.template along<u8>(column, first + k));
          });
    }
  });
}
template <int kRows>
void multiply_code_values(float (&sums)[kRows / 2], const u32 (&left)[4], u64 right) {
  queue_product<Element::kF16>(sums, kRows / 8, true, left, right, false);
}

}  // namespace attn
