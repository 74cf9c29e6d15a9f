// Launches of kernels/cache/write_mla_cache.cuh and ds_mla.cuh. Plain entries are moved by whole
// rows; for "fp8_ds_mla" the lanes of a warp work together, because the scale of a tile needs all
// of its 128 values first.
#include "core/error.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {

/// The refusals of the CPU operation, in the same words.
void check_ds_mla(const attn::MlaCacheWriteParams& p) {
  if (p.kv_lora_rank != attn::kDsMlaLatent || p.rope_head_dim != attn::kDsMlaRope) {
    fail(ErrorKind::kShape,
         "fp8_ds_mla cache: expected kv_lora_rank 512 and rope dim 64, got {} {}", p.kv_lora_rank,
         p.rope_head_dim);
  }
  if (p.source_element != attn::Element::kBF16) {
    fail(ErrorKind::kDtype, "fp8_ds_mla cache: expected bfloat16 input, got {}",
         short_name(p.source_element));
  }
}

constexpr int kModel1Threads = 128;

void check_model1_entries(const Alignment& entries) {
  if (entries.common_bytes() >= 4) return;
  fail(ErrorKind::kUnsupported, "fp8_model1_mla on CUDA expects entries on multiples of 4 bytes");
}

/// An entry has 656 bytes, so entries lie on 16 bytes where blocks and slots do.
void write_ds_mla(Launcher& launcher, const attn::MlaCacheWriteParams& p) {
  check_ds_mla(p);
  VectorSide source{attn::Element::kBF16, {}};
  source.alignment.pointer(p.kv_c)
      .pointer(p.k_pe)
      .stride(p.kv_c_token_stride, attn::Element::kBF16)
      .stride(p.k_pe_token_stride, attn::Element::kBF16);
  const int entry_bytes =
      Alignment().pointer(p.cache).bytes(p.block_stride).bytes(p.slot_stride).common_bytes();
  const int vector = widest_vector(8, {}, {source}) == 8 ? 8 : 1;
  const int store_bytes = entry_bytes == 16 ? 16 : 4;
  // Measured as in simple_launch.h, 262144 latents: 3797 GB/s; 128 threads 3779, 256 3651; one
  // token of a warp 3344, two 3736.
  constexpr int kThreads = 64;
  constexpr int kTokens = 4;
  KernelSpec spec;
  spec.source = "cache/ds_mla.cuh";
  spec.function = "attn::write_ds_mla";
  spec.constants = {{"int kVector", std::to_string(vector)},
                    {"int kStoreBytes", std::to_string(store_bytes)},
                    {"int kTokens", std::to_string(kTokens)},
                    {"int kThreads", std::to_string(kThreads)}};
  spec.name = "write_mla_cache fp8_ds_mla x" + std::to_string(vector) + " by " +
              std::to_string(store_bytes) + " bytes";
  LaunchShape shape;
  shape.grid_x = ceil_quotient(p.num_slots, kTokens * kThreads / 32);
  shape.threads = kThreads;
  launch(launcher, spec, shape, p);
}

void write_model1(Launcher& launcher, const attn::MlaCacheWriteParams& p) {
  if (p.kv_lora_rank != attn::kModel1Latent || p.rope_head_dim != attn::kModel1Rope) {
    fail(ErrorKind::kShape,
         "fp8_model1_mla cache: expected kv_lora_rank 448 and rope dim 64, got {} {}",
         p.kv_lora_rank, p.rope_head_dim);
  }
  if (p.source_element != attn::Element::kBF16) {
    fail(ErrorKind::kDtype, "fp8_model1_mla cache: expected bfloat16 input, got {}",
         short_name(p.source_element));
  }
  VectorSide source{attn::Element::kBF16, {}};
  source.alignment.pointer(p.kv_c)
      .pointer(p.k_pe)
      .stride(p.kv_c_token_stride, attn::Element::kBF16)
      .stride(p.k_pe_token_stride, attn::Element::kBF16);
  check_model1_entries(Alignment().pointer(p.cache).bytes(p.block_stride).bytes(p.slot_stride));
  const int load = widest_vector(2, {}, {source});
  KernelSpec spec;
  spec.source = "cache/model1.cuh";
  spec.function = "attn::write_model1";
  spec.constants = {{"int kLoad", std::to_string(load)},
                    {"int kThreads", std::to_string(kModel1Threads)}};
  spec.name = "write_mla_cache fp8_model1_mla x" + std::to_string(load);
  LaunchShape shape;
  shape.grid_x = ceil_quotient(p.num_slots, kModel1Threads / 32);
  shape.threads = kModel1Threads;
  launch(launcher, spec, shape, p);
}

void upconvert_model1(Launcher& launcher, const attn::DsMlaUpconvertParams& p) {
  check_model1_entries(Alignment()
                           .pointer(p.entries.cache)
                           .bytes(p.entries.block_stride)
                           .bytes(p.entries.slot_stride));
  KernelSpec spec;
  spec.source = "cache/model1.cuh";
  spec.function = "attn::upconvert_model1";
  spec.constants = {{"int kThreads", std::to_string(kModel1Threads)}};
  spec.name = "upconvert fp8_model1_mla";
  LaunchShape shape;
  shape.grid_x = ceil_quotient(p.num_rows, kModel1Threads / 32);
  shape.threads = kModel1Threads;
  launch(launcher, spec, shape, p);
}

}  // namespace

void write_mla_cache(Launcher& launcher, const attn::MlaCacheWriteParams& p) {
  if (p.format == attn::MlaEntry::kModel1) {
    write_model1(launcher, p);
    return;
  }
  if (p.format == attn::MlaEntry::kDsMla) {
    write_ds_mla(launcher, p);
    return;
  }
  const attn::Element cache =
      p.format == attn::MlaEntry::kE4M3 ? attn::Element::kE4M3 : p.source_element;
  VectorSide source{p.source_element, {}};
  source.alignment.pointer(p.kv_c)
      .pointer(p.k_pe)
      .stride(p.kv_c_token_stride, p.source_element)
      .stride(p.k_pe_token_stride, p.source_element);
  VectorSide entries{cache, {}};
  entries.alignment.pointer(p.cache).stride(p.block_stride, cache).stride(p.slot_stride, cache);
  // Codes are stored by 16 bytes, which takes several loads of the source.
  const int vector = widest_vector(16 / size_of_element(cache), {p.kv_lora_rank, p.rope_head_dim},
                                   {source, entries});
  KernelSpec spec;
  spec.source = "cache/write_mla_cache.cuh";
  spec.function = "attn::write_mla_cache";
  spec.constants = {{"attn::Element kSource", spec_name(p.source_element)},
                    {"attn::Element kCache", spec_name(cache)},
                    {"int kVector", std::to_string(vector)}};
  spec.name = "write_mla_cache " + short_name(p.source_element) + " to " + short_name(cache) +
              " x" + std::to_string(vector);
  // Measured as in simple_launch.h, 262144 latents: two batches make e4m3 4 % faster, bf16 2 %
  // slower.
  const int batches = cache == p.source_element ? 1 : 2;
  const LaunchShape shape =
      deal_out_rows(spec, p.num_slots, (p.kv_lora_rank + p.rope_head_dim) / vector,
                    vector * size_of_element(p.source_element), batches);
  launch(launcher, spec, shape, p);
}

void rope_and_write_mla_cache(Launcher& launcher, const attn::RopeParams& rope,
                              const attn::MlaCacheWriteParams& write) {
  cuda::rope(launcher, rope);
  write_mla_cache(launcher, write);
}

void upconvert_ds_mla(Launcher& launcher, const attn::DsMlaUpconvertParams& p) {
  const attn::Element bf16 = attn::Element::kBF16;
  const int entry_bytes = Alignment()
                              .pointer(p.entries.cache)
                              .bytes(p.entries.block_stride)
                              .bytes(p.entries.slot_stride)
                              .common_bytes();
  const int row_bytes =
      Alignment().pointer(p.output).stride(p.output_token_stride, bf16).common_bytes();
  if (row_bytes < 4) {
    fail(ErrorKind::kUnsupported, "upconvert_ds_mla on CUDA expects rows on multiples of 4 bytes");
  }
  if (p.num_requests == 0) return;
  if (p.is_model1 != 0) return upconvert_model1(launcher, p);
  const int vector = entry_bytes == 16 && row_bytes == 16 ? 8 : 2;
  KernelSpec spec;
  spec.source = "cache/ds_mla.cuh";
  spec.function = "attn::upconvert_ds_mla";
  spec.constants = {{"int kVector", std::to_string(vector)}};
  spec.name = "upconvert fp8_ds_mla x" + std::to_string(vector);
  // A piece is held as codes with their scale, or as k_pe.
  const int held_bytes = vector + 4 + vector * 2;
  // Measured as above: 3781 GB/s; one batch 3603, four 3688.
  constexpr int kBatches = 2;
  const LaunchShape shape = deal_out_rows(
      spec, p.num_rows, (attn::kDsMlaLatent + attn::kDsMlaRope) / vector, held_bytes, kBatches);
  launch(launcher, spec, shape, p);
}

}  // namespace attnbench::cuda
