// Launches of kernels/indexer. All three are the definition on a GPU and no more: what an engine
// uses here multiplies with matrix units and chooses keys while it does.
#include <algorithm>

#include "core/error.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {

constexpr int kWarp = 32;

/// The kernels load 16 codes and 4 scales at once.
void check_codes(const attn::IndexLogitsParams& p) {
  const int bytes = Alignment()
                        .pointer(p.query)
                        .pointer(p.cache)
                        .bytes(p.query_token_stride)
                        .bytes(p.query_head_stride)
                        .bytes(p.block_stride)
                        .common_bytes();
  if (bytes >= 16) return;
  fail(ErrorKind::kUnsupported,
       "index_logits on CUDA expects codes of queries and blocks on multiples of 16 bytes");
}

}  // namespace

void write_index_cache(Launcher& launcher, const attn::IndexCacheWriteParams& p) {
  if (Alignment().pointer(p.cache).bytes(p.block_stride).common_bytes() < 4) {
    fail(ErrorKind::kUnsupported,
         "write_index_cache on CUDA expects blocks on multiples of 4 bytes");
  }
  constexpr int kThreads = 128;
  VectorSide source{p.source_element, {}};
  source.alignment.pointer(p.key).stride(p.key_token_stride, p.source_element);
  const int vector = widest_vector(4, {attn::kIndexKey}, {source}) == 4 ? 4 : 1;
  KernelSpec spec;
  spec.source = "indexer/index_cache.cuh";
  spec.function = "attn::write_index_cache";
  spec.constants = {{"attn::Element kSource", spec_name(p.source_element)},
                    {"int kVector", std::to_string(vector)},
                    {"int kThreads", std::to_string(kThreads)}};
  spec.name = "write_index_cache " + short_name(p.source_element) + " x" + std::to_string(vector);
  LaunchShape shape;
  shape.grid_x = ceil_quotient(p.num_slots, kThreads / kWarp);
  shape.threads = kThreads;
  launch(launcher, spec, shape, p);
}

void index_logits(Launcher& launcher, const attn::IndexLogitsParams& p) {
  check_codes(p);
  constexpr int kThreads = 128;
  constexpr int kHeads = 8;  // of a turn: 4 KiB of queries
  KernelSpec spec;
  spec.source = "indexer/index_logits.cuh";
  spec.function = "attn::index_logits";
  spec.constants = {{"int kHeads", std::to_string(kHeads)},
                    {"int kThreads", std::to_string(kThreads)}};
  spec.name = "index_logits";
  LaunchShape shape;
  shape.grid_x = p.num_tokens;
  shape.grid_y = ceil_quotient(p.num_columns, kThreads);
  shape.threads = kThreads;
  launch(launcher, spec, shape, p);
}

void index_topk(Launcher& launcher, const attn::IndexTopkParams& p) {
  constexpr int kThreads = 512;
  KernelSpec spec;
  spec.source = "indexer/index_topk.cuh";
  spec.function = "attn::index_topk";
  spec.constants = {{"int kThreads", std::to_string(kThreads)}};
  spec.name = "index_topk";
  LaunchShape shape;
  shape.grid_x = p.num_tokens;
  shape.threads = kThreads;
  launch(launcher, spec, shape, p);
}

}  // namespace attnbench::cuda
