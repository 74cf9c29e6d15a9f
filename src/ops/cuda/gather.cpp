// Launches of kernels/cache/gather.cuh.
#include <algorithm>

#include "ops/cuda/operations.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

constexpr int kThreads = 256;

/// Threads of a row of `vectors` loads: a power of two up to a CTA, at least two loads a thread.
int choose_row_threads(int vectors) {
  int threads = 8;
  while (threads < kThreads && threads * 2 < vectors) threads *= 2;
  return threads;
}

Alignment entry_alignment(const attn::MlaEntries& entries) {
  Alignment alignment;
  alignment.pointer(entries.cache)
      .stride(entries.block_stride, entries.element)
      .stride(entries.slot_stride, entries.element)
      .stride(entries.entry_size, entries.element);
  return alignment;
}

LaunchShape rows_shape(std::int64_t num_rows, int row_threads) {
  LaunchShape shape;
  shape.grid_x = ceil_quotient(num_rows, kThreads / row_threads);
  shape.threads = kThreads;
  return shape;
}

}  // namespace

void gather_mla(Launcher& launcher, const attn::MlaGatherParams& params) {
  const attn::MlaEntries& entries = params.entries;
  const int in_bytes = entry_alignment(entries).common_bytes();
  const int out_bytes = Alignment()
                            .pointer(params.output)
                            .stride(params.output_token_stride, params.output_element)
                            .common_bytes();
  const auto fits = [&](int vector) {
    const int load = vector * size_of_element(entries.element);
    const int store = vector * size_of_element(params.output_element);
    return entries.entry_size % vector == 0 && load <= in_bytes && std::min(store, 16) <= out_bytes;
  };
  int vector = 16;
  while (vector > 1 && !fits(vector)) vector /= 2;
  const int row_threads = choose_row_threads(entries.entry_size / vector);
  KernelSpec spec;
  spec.source = "cache/gather.cuh";
  spec.function = "attn::gather_mla";
  spec.constants = {{"attn::Element kCache", spec_name(entries.element)},
                    {"attn::Element kOutput", spec_name(params.output_element)},
                    {"int kVector", std::to_string(vector)},
                    {"int kThreads", std::to_string(kThreads)},
                    {"int kRowThreads", std::to_string(row_threads)}};
  spec.name = "gather " + short_name(entries.element) + " to " + short_name(params.output_element) +
              " x" + std::to_string(vector);
  cuda::launch(launcher, spec, rows_shape(params.num_tokens, row_threads), params);
}

void cp_gather(Launcher& launcher, const attn::CpGatherParams& params) {
  const attn::MlaEntries& entries = params.entries;
  const int bytes = entry_alignment(entries)
                        .pointer(params.output)
                        .stride(params.output_token_stride, entries.element)
                        .common_bytes();
  const int element_bytes = size_of_element(entries.element);
  const int row_threads = choose_row_threads(entries.entry_size * element_bytes / bytes);
  KernelSpec spec;
  spec.source = "cache/gather.cuh";
  spec.function = "attn::cp_gather";
  spec.constants = {{"int kBytes", std::to_string(bytes)},
                    {"int kElementBytes", std::to_string(element_bytes)},
                    {"int kThreads", std::to_string(kThreads)},
                    {"int kRowThreads", std::to_string(row_threads)}};
  spec.name = "cp_gather x" + std::to_string(bytes) + " bytes";
  cuda::launch(launcher, spec, rows_shape(params.num_tokens, row_threads), params);
}

}  // namespace attnbench::cuda
