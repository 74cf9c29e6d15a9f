// Launches of kernels/cache/gather.cuh. Gathers are bound by bandwidth: everything here is about
// the widest loads and stores that entries and rows allow.
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {

/// What every entry of the cache starts on a multiple of, and is one of.
Alignment entry_alignment(const attn::MlaEntries& entries) {
  Alignment alignment;
  alignment.pointer(entries.cache)
      .stride(entries.block_stride, entries.element)
      .stride(entries.slot_stride, entries.element)
      .stride(entries.entry_size, entries.element);
  return alignment;
}

}  // namespace

void gather_mla(Launcher& launcher, const attn::MlaGatherParams& params) {
  const attn::MlaEntries& entries = params.entries;
  const int in_bytes = entry_alignment(entries).common_bytes();
  const int out_bytes = Alignment()
                            .pointer(params.output)
                            .stride(params.output_token_stride, params.output_element)
                            .common_bytes();
  // Why no more of a store than 16 bytes: a warp would leave gaps between them.
  const auto fits = [&](int vector) {
    const int load = vector * size_of_element(entries.element);
    const int store = vector * size_of_element(params.output_element);
    return entries.entry_size % vector == 0 && load <= in_bytes && store <= out_bytes;
  };
  int vector = 16;
  while (vector > 1 && !fits(vector)) vector /= 2;
  KernelSpec spec;
  spec.source = "cache/gather.cuh";
  spec.function = "attn::gather_mla";
  spec.constants = {{"attn::Element kCache", spec_name(entries.element)},
                    {"attn::Element kOutput", spec_name(params.output_element)},
                    {"int kVector", std::to_string(vector)}};
  spec.name = "gather " + short_name(entries.element) + " to " + short_name(params.output_element) +
              " x" + std::to_string(vector);
  const LaunchShape shape = deal_out_rows(spec, params.num_tokens, entries.entry_size / vector,
                                          vector * size_of_element(entries.element), 1);
  cuda::launch(launcher, spec, shape, params);
}

void cp_gather(Launcher& launcher, const attn::CpGatherParams& params) {
  const attn::MlaEntries& entries = params.entries;
  const int bytes = entry_alignment(entries)
                        .pointer(params.output)
                        .stride(params.output_token_stride, entries.element)
                        .common_bytes();
  const int element_bytes = size_of_element(entries.element);
  KernelSpec spec;
  spec.source = "cache/gather.cuh";
  spec.function = "attn::cp_gather";
  spec.constants = {{"int kBytes", std::to_string(bytes)},
                    {"int kElementBytes", std::to_string(element_bytes)}};
  spec.name = "cp_gather x" + std::to_string(bytes) + " bytes";
  const LaunchShape shape =
      deal_out_rows(spec, params.num_tokens, entries.entry_size * element_bytes / bytes, bytes, 1);
  cuda::launch(launcher, spec, shape, params);
}

}  // namespace attnbench::cuda
