// Latent attention: which way its rows take, and the products around it.
#include "ops/cuda/measure/screen_latent.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ops/cuda/measure/screen.h"
#include "ops/cuda/measure/screen_work.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

KernelSpec latent_spec(const char* function, const char* name) {
  KernelSpec spec;
  spec.source = "measure/screen_latent.cuh";
  spec.function = std::string("attn::") + function;
  spec.name = name;
  return spec;
}
KernelSpec product_spec() { return latent_spec("screen_product", "screen product"); }
KernelSpec compare_spec() { return latent_spec("screen_compare", "screen compare"); }

/// sizeof(attn::ScreenProductMemory), which only the device file knows; a test compares the two.
constexpr int kProductSharedBytes =
    2 * 32 * (attn::kScreenProductTile + 1) * static_cast<int>(sizeof(double));

struct LatentSizes {
  std::int64_t heads, nope, rope, latent, value;

  explicit LatentSizes(const LatentScreenInputs& inputs)
      : heads(inputs.w_uk->dim(0)),
        nope(inputs.w_uk->dim(1)),
        rope(inputs.k_pe->dim(1)),
        latent(inputs.w_uk->dim(2)),
        value(inputs.w_uv->dim(2)) {}
};

ScreenBatch batch_of(const LatentScreenInputs& inputs) {
  ScreenBatch batch;
  batch.query_start_loc = inputs.query_start_loc;
  batch.seq_lens = inputs.seq_lens;
  batch.key_start_loc = inputs.key_start_loc;
  batch.visible_begin = inputs.visible_begin;
  batch.visible_end = inputs.visible_end;
  return batch;
}

/// Rows of kv_c that the requests have, where they lie one behind another.
struct KeySpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  explicit KeySpan(const LatentScreenInputs& inputs) {
    if (inputs.seq_lens.empty()) return;
    begin = inputs.key_start_loc[0];
    for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
      begin = std::min(begin, inputs.key_start_loc[b]);
      end = std::max(end, inputs.key_start_loc[b] + inputs.seq_lens[b]);
    }
  }
  std::int64_t count() const { return std::max<std::int64_t>(0, end - begin); }
};

/// Whether expanding all keys costs more than longer products with the latents do.
bool is_cheaper_in_latents(const LatentScreenInputs& inputs) {
  if (!inputs.key_index.empty() || inputs.latent_query != nullptr) return true;
  const LatentSizes n(inputs);
  double pairs = 0;
  for (std::int32_t token = inputs.first_token(); token < inputs.last_token(); ++token) {
    const auto at = static_cast<std::size_t>(token);
    pairs += inputs.visible_end[at] - inputs.visible_begin[at];
  }
  const auto tokens = static_cast<double>(inputs.last_token() - inputs.first_token());
  const auto weights = static_cast<double>(n.latent * (n.nope + n.value));
  // Every chunk of columns has its scores computed anew.
  const int chunks = num_screen_chunks(n.latent);
  const double in_latents =
      pairs * static_cast<double>(chunks * (n.latent + n.rope) + n.latent) + tokens * weights;
  const double expanded = pairs * static_cast<double>(n.nope + n.rope + n.value) +
                          static_cast<double>(KeySpan(inputs).count()) * weights;
  return in_latents <= expanded;
}

/// How the weights [H, Lkv, V] of each head make vectors grow on average, as the reference has it.
std::vector<double> growth_of(const Tensor& w_uv) {
  const std::int64_t count = w_uv.dim(1) * w_uv.dim(2);
  std::vector<double> growth;
  for (std::int64_t head = 0; head < w_uv.dim(0); ++head) {
    double square = 0;
    for (std::int64_t i = head * count; i < (head + 1) * count; ++i) {
      const double weight = w_uv.at(i);
      if (std::isfinite(weight)) square += weight * weight;
    }
    growth.push_back(std::sqrt(square / static_cast<double>(w_uv.dim(1))));
  }
  return growth;
}

attn::ScreenOperand product_operand(const double* data, std::int64_t row_stride,
                                    std::int64_t head_stride, std::int64_t width) {
  return {attn::Element::kF64, data, row_stride, head_stride, 0, static_cast<int>(width)};
}

}  // namespace

std::vector<KernelSpec> latent_screen_specs() { return {product_spec(), compare_spec()}; }

double* Screen::multiply(attn::ScreenProductParams params, const char* name, Work& work) {
  params.product = work.make<double>(params.num_rows * params.num_heads * params.right.width, name);
  LaunchShape shape;
  shape.threads = attn::kScreenThreads;
  shape.shared_bytes = kProductSharedBytes;
  shape.grid_x = ceil_quotient(params.num_rows, attn::kScreenProductTile) * params.num_heads *
                 ceil_quotient(params.right.width, attn::kScreenProductTile);
  launch(launcher_, product_spec(), shape, params);
  return params.product;
}

/// All but the query, the values and the output; key and value are the latents.
attn::ScreenParams Screen::latent_params(const LatentScreenInputs& inputs, Work& work) {
  const LatentSizes n(inputs);
  attn::ScreenParams params{};
  params.num_heads = static_cast<int>(n.heads);
  params.query = operand(*inputs.query, "query");
  params.query.row_stride = params.query.head_stride;
  params.query_rope = params.query;
  params.query.width = static_cast<int>(n.nope);
  params.query_rope.first = n.nope;
  params.query_rope.width = static_cast<int>(n.rope);
  params.key = params.value = operand(*inputs.kv_c, "latents");
  params.key_rope = operand(*inputs.k_pe, "rotated keys");
  params.key_rope.head_stride = 0;  // one for all heads
  params.num_keys = inputs.kv_c->dim(0);
  params.softmax_scale = inputs.softmax_scale;
  params.visible_begin = work.upload(inputs.visible_begin, "first keys");
  params.visible_end = work.upload(inputs.visible_end, "last keys");
  if (!inputs.key_index.empty()) params.key_index = work.upload(inputs.key_index, "listed keys");
  return params;
}

void Screen::set_latent_query(const LatentScreenInputs& inputs, attn::ScreenParams& params,
                              Work& work) {
  const LatentSizes n(inputs);
  if (inputs.latent_query != nullptr) {
    params.query = operand(*inputs.latent_query, "latent query");
    params.query.row_stride = params.query.head_stride;
    params.query_rope = params.query;
    params.query.width = static_cast<int>(n.latent);
    params.query_rope.first = n.latent;
    params.query_rope.width = static_cast<int>(n.rope);
    return;
  }
  const std::int64_t first = inputs.first_token();
  attn::ScreenProductParams product{};
  product.left = operand(*inputs.query, "query");
  product.left.first = first * product.left.row_stride;
  product.left.width = static_cast<int>(n.nope);
  product.right = operand(*inputs.w_uk, "W_UK");  // [H, P, Lkv]
  product.right.head_stride = n.nope * n.latent;
  product.right.row_stride = n.latent;
  product.column_stride = 1;
  product.num_rows = inputs.last_token() - first;
  product.num_heads = static_cast<int>(n.heads);
  const double* const query = multiply(product, "latent query", work);
  params.query = product_operand(query, n.latent, 0, n.latent);
  params.query.first = -first * n.heads * n.latent;
}

/// Attends to the latents, then o = o_l * W_UV.
void Screen::compare_projected(const LatentScreenInputs& inputs, attn::ScreenParams params,
                               Work& work) {
  const LatentSizes n(inputs);
  const std::int64_t first = inputs.first_token();
  const std::int64_t tokens = inputs.last_token() - first;
  set_latent_query(inputs, params, work);
  attn::ScreenCompareParams compare{};
  compare.num_chunks = num_screen_chunks(n.latent);
  compare.first_row = params.first_row = first * n.heads;
  compare.num_rows = tokens * n.heads;
  compare.records = params.records;
  params.rows = work.make<double>(compare.num_rows * n.latent, "rows in the latent space");
  params.records = work.make<attn::ScreenRecord>(inputs.last_token() * n.heads * compare.num_chunks,
                                                 "records of latents");
  ScreenBatch batch = batch_of(inputs);
  batch.group = static_cast<int>(n.heads);
  batch.v_head_size = static_cast<int>(n.latent);
  attend(batch, params, work);

  attn::ScreenProductParams product{};
  product.left = product_operand(params.rows, n.heads * n.latent, n.latent, n.latent);
  product.right = operand(*inputs.w_uv, "W_UV");  // [H, Lkv, V]
  product.right.head_stride = n.latent * n.value;
  product.right.row_stride = n.value;
  product.column_stride = 1;
  product.num_rows = tokens;
  product.num_heads = static_cast<int>(n.heads);
  compare.output = params.output;
  compare.rows = multiply(product, "projected rows", work);
  const std::vector<double> growth = growth_of(*inputs.w_uv);
  compare.growth = work.upload(std::span<const double>(growth), "growth of heads");
  compare.latents = params.records;
  compare.num_heads = params.num_heads;
  compare.v_head_size = static_cast<int>(n.value);
  LaunchShape shape;
  shape.threads = attn::kScreenThreads;
  shape.grid_x = ceil_quotient(compare.num_rows, attn::kScreenThreads / attn::kScreenLanes);
  launch(launcher_, compare_spec(), shape, compare);
}

/// [k_nope | v] = kv_c * W_{UK|UV}, as many heads at a time as fit.
void Screen::compare_expanded(const LatentScreenInputs& inputs, attn::ScreenParams params,
                              Work& work) {
  const LatentSizes n(inputs);
  const KeySpan keys(inputs);
  std::vector<std::int64_t> starts(inputs.key_start_loc.begin(), inputs.key_start_loc.end());
  for (std::int64_t& start : starts) start -= keys.begin;
  ScreenBatch batch = batch_of(inputs);
  batch.key_start_loc = starts;
  batch.v_head_size = static_cast<int>(n.value);
  params.num_keys = keys.count();
  params.key_rope.first = keys.begin * params.key_rope.row_stride;
  const std::int64_t head_bytes =
      keys.count() * (n.nope + n.value) * static_cast<std::int64_t>(sizeof(double));
  const std::int64_t step = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(most_expanded_bytes_) / std::max<std::int64_t>(1, head_bytes), 1,
      n.heads);
  attn::ScreenProductParams product{};
  product.left = operand(*inputs.kv_c, "latents");
  product.left.first = keys.begin * n.latent;
  product.left.head_stride = 0;
  product.num_rows = keys.count();
  const std::size_t mark = work.mark();
  for (std::int64_t head = 0; head < n.heads; head += step) {
    const std::int64_t count = std::min(step, n.heads - head);
    product.num_heads = static_cast<int>(count);
    product.right = operand(*inputs.w_uk, "W_UK");  // [H, P, Lkv], transposed
    product.right.first = head * n.nope * n.latent;
    product.right.head_stride = n.nope * n.latent;
    product.right.row_stride = 1;
    product.right.width = static_cast<int>(n.nope);
    product.column_stride = n.latent;
    params.key = product_operand(multiply(product, "keys", work), count * n.nope, n.nope, n.nope);
    product.right = operand(*inputs.w_uv, "W_UV");  // [H, Lkv, V]
    product.right.first = head * n.latent * n.value;
    product.right.head_stride = n.latent * n.value;
    product.right.row_stride = n.value;
    product.column_stride = 1;
    params.value =
        product_operand(multiply(product, "values", work), count * n.value, n.value, n.value);
    params.first_head = static_cast<int>(head);
    batch.num_kv_heads = static_cast<int>(count);
    attend(batch, params, work);
    work.drop_since(mark);
  }
}

void Screen::compare(const LatentScreenInputs& inputs, const ScreenOutput& output,
                     std::vector<attn::ScreenRecord>& records) {
  if (inputs.first_token() == inputs.last_token()) return;
  Work work(*this);
  const LatentSizes n(inputs);
  attn::ScreenParams params = latent_params(inputs, work);
  params.output = output_params(output, work);
  const bool in_latents = is_cheaper_in_latents(inputs);
  const int chunks = in_latents ? 1 : num_screen_chunks(n.value);
  const std::int64_t count = inputs.last_token() * n.heads * chunks;
  params.records = work.make<attn::ScreenRecord>(count, "records");
  if (in_latents) {
    compare_projected(inputs, params, work);
  } else {
    compare_expanded(inputs, params, work);
  }
  const std::vector<attn::ScreenRecord> all =
      join_chunks(work.download(params.records, count), chunks);
  std::copy(all.begin() + inputs.first_token() * n.heads, all.end(),
            records.begin() + inputs.first_token() * n.heads);
}

std::vector<attn::ScreenRecord> Screen::compare_latents(const LatentScreenInputs& inputs,
                                                        const ScreenOutput& output) {
  if (inputs.first_token() == inputs.last_token()) return {};
  Work work(*this);
  const LatentSizes n(inputs);
  attn::ScreenParams params = latent_params(inputs, work);
  params.output = output_params(output, work);
  set_latent_query(inputs, params, work);
  const int chunks = num_screen_chunks(n.latent);
  const std::int64_t count = inputs.last_token() * n.heads * chunks;
  params.records = work.make<attn::ScreenRecord>(count, "records");
  ScreenBatch batch = batch_of(inputs);
  batch.group = static_cast<int>(n.heads);
  batch.v_head_size = static_cast<int>(n.latent);
  attend(batch, params, work);
  return join_chunks(work.download(params.records, count), chunks);
}

}  // namespace attnbench::cuda
