// Screening of latent attention against the reference: the device code on emulated threads, for
// decodes and prefills, lists of keys, quantised latents, and every way that the host may take.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>

#include "bench/judge/device_screen.h"
#include "bench/judge/screen.h"
#include "ops/cuda/testing/emulated_screen_testing.h"
#include "ops/ops.h"
#include "reference/mla/mla_reference.h"
#include "reference/mla/naive_mla.h"

namespace attnbench {
namespace {

struct EmulatedLatents {
  std::unique_ptr<Ops> ops = make_cpu_ops(1);
  cuda::EmulatedScreenLauncher launcher;
  std::unique_ptr<RowScreen> screen = make_device_screen(*ops, launcher);

  std::set<std::string> functions() const {
    std::set<std::string> names;
    for (const KernelSpec& spec : launcher.launched) names.insert(spec.function);
    return names;
  }
};

/// Two decodes and two prefills of a model with small dimensions; rows of NaN between requests.
NaiveMlaCase latent_case(Dtype dtype = Dtype::kBF16, int latent = 48) {
  NaiveMlaCase c;
  c.dims = {3, latent, 24, 8, 20};
  c.softmax_scale = 0.25;
  c.padding = 2;
  for (const auto& [query_len, seq_len] : {std::pair{1, 70}, std::pair{2, 9}}) {
    c.add_request(query_len, seq_len);
  }
  c.num_decode_tokens = c.num_tokens();
  for (const auto& [query_len, seq_len] : {std::pair{20, 20}, std::pair{18, 90}}) {
    c.add_request(query_len, seq_len);
  }
  MlaRandom random(5);
  c.fill(dtype, random);
  return c;
}

bool is_near(double a, double b, double unit) {
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= 1e-11 * (unit + std::abs(b));
}

Tensor rounded(const ReferenceOutput& reference) {
  Tensor output(Dtype::kBF16, {static_cast<std::int64_t>(reference.rows.size()),
                               reference.num_heads, reference.v_head_size});
  for (std::int64_t i = 0; i < output.num_elements(); ++i) {
    output.set(i, static_cast<float>(reference.output[static_cast<std::size_t>(i)]));
  }
  return output;
}

/// What the device finds is what the reference finds, of every row and head.
void check_latents(const NaiveMlaCase& c, const MlaReferenceInputs& inputs,
                   EmulatedLatents& device) {
  const ReferenceOutput reference = *mla_reference(inputs, c.all_rows(), {});
  Tensor output = rounded(reference);
  for (std::int64_t i = 0; i < output.num_elements(); i += 7) output.set(i, 0.5f);
  const ScreenTable actual = device.screen->compare_latent(inputs, {&output});
  const ScreenTable expected = screen_by(reference, {&output});
  REQUIRE(actual.rows == expected.rows);
  REQUIRE(actual.of.size() == expected.of.size());
  CHECK(actual.is_float64);
  for (std::size_t i = 0; i < actual.of.size(); ++i) {
    const ScreenedRow& a = actual.of[i];
    const ScreenedRow& e = expected.of[i];
    CAPTURE(i);
    CHECK(is_near(a.error, e.error, e.size));
    CHECK(is_near(a.expected, e.expected, e.size));
    CHECK(is_near(a.largest, e.largest, e.size));
    CHECK(is_near(a.lse, e.lse, 1));
    CHECK(a.misplaced == 0);
    CHECK(a.size >= a.expected);
  }
}

void check_latents(const NaiveMlaCase& c, const MlaReferenceInputs& inputs) {
  EmulatedLatents device;
  check_latents(c, inputs, device);
}

}  // namespace

TEST_CASE("latent attention is screened to what the reference gives, in every type") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    CAPTURE(dtype_name(dtype));
    const NaiveMlaCase c = latent_case(dtype);
    check_latents(c, c.inputs());
  }
}

TEST_CASE("long latents take several chunks of columns") {
  const NaiveMlaCase c = latent_case(Dtype::kBF16, 150);
  EmulatedLatents device;
  check_latents(c, c.inputs(), device);
  CHECK(device.functions().contains("attn::screen_compare"));
}

TEST_CASE("prefills that see few keys have them expanded, as many heads at a time as fit") {
  NaiveMlaCase c;
  c.dims = {3, 40, 24, 8, 20};
  c.add_request(60, 60);
  c.add_request(20, 30);
  MlaRandom random(6);
  c.fill(Dtype::kBF16, random);
  EmulatedLatents device;
  check_latents(c, c.inputs(), device);
  CHECK(device.functions().contains("attn::screen_product"));
  CHECK_FALSE(device.functions().contains("attn::screen_compare"));  // of what is projected

  std::vector<std::int32_t> begin(static_cast<std::size_t>(c.num_tokens()), 0);
  std::vector<std::int32_t> end;
  for (int i = 1; i <= 60; ++i) end.push_back(i);
  for (int i = 11; i <= 30; ++i) end.push_back(i);
  cuda::LatentScreenInputs inputs;
  inputs.query = &c.query;
  inputs.kv_c = &c.kv_c;
  inputs.k_pe = &c.k_pe;
  inputs.w_uk = &c.w_uk;
  inputs.w_uv = &c.w_uv;
  inputs.query_start_loc = c.query_start_loc;
  inputs.seq_lens = c.seq_lens;
  inputs.key_start_loc = c.key_start_loc;
  inputs.visible_begin = begin;
  inputs.visible_end = end;
  inputs.softmax_scale = c.softmax_scale;
  const Tensor output = rounded(*mla_reference(c.inputs(), c.all_rows(), {}));
  const auto records_of = [&](std::size_t most_bytes) {
    cuda::EmulatedScreenLauncher launcher;
    cuda::Screen screen(*device.ops, launcher);
    screen.limit_expanded(most_bytes);
    std::vector<attn::ScreenRecord> records(end.size() * 3);
    screen.compare(inputs, {&output, 1, 3e38, false}, records);
    return std::pair{records, launcher.launched.size()};
  };
  const auto [together, few] = records_of(1 << 30);
  const auto [alone, many] = records_of(1);
  CHECK(many > few);
  for (std::size_t i = 0; i < together.size(); ++i) {
    CHECK(together[i].error_squares == alone[i].error_squares);
    CHECK(together[i].lse == alone[i].lse);
  }
}

TEST_CASE("a quantised latent query is what decodes attend with") {
  NaiveMlaCase c = latent_case();
  c.latent_query =
      Tensor(Dtype::kF32, {c.num_decode_tokens, c.dims.num_heads, c.dims.entry_size()});
  MlaRandom random(9);
  for (std::int64_t i = 0; i < c.latent_query.num_elements(); ++i) {
    c.latent_query.set(i, random.normal());
  }
  check_latents(c, c.inputs());
}

TEST_CASE("prefills read their own new tokens as they were before a quantised cache") {
  const NaiveMlaCase c = latent_case();
  NaiveMlaCase quantised = c;
  for (std::int64_t i = 0; i < quantised.kv_c.num_elements(); ++i) {
    quantised.kv_c.set(i, std::round(4 * c.kv_c.at(i)) / 4);
  }
  MlaReferenceInputs inputs = quantised.inputs();
  inputs.kv_c_unquantized = &c.kv_c;
  inputs.k_pe_unquantized = &c.k_pe;
  check_latents(c, inputs);
}

TEST_CASE("listed keys count as often as they are listed, and no others") {
  NaiveMlaCase c = latent_case();
  const int topk = 6;
  c.topk_indices = Tensor(Dtype::kI32, {c.num_tokens() + c.padding, topk});
  MlaRandom random(3);
  for (std::size_t b = 0; b < c.seq_lens.size(); ++b) {
    for (std::int64_t row = c.query_start_loc[b]; row < c.query_start_loc[b + 1]; ++row) {
      for (int n = 0; n < topk; ++n) {
        c.topk_indices.data<std::int32_t>()[row * topk + n] =
            row == 4 ? -1 : random.integer(-2, c.seq_lens[b] + 3);
      }
    }
  }
  check_latents(c, c.inputs());
  for (int row = 0; row < c.num_tokens(); ++row) c.topk_lengths.push_back(row % (topk + 1));
  check_latents(c, c.inputs());
}

TEST_CASE("a wrong row of latent attention shows, and no other") {
  const NaiveMlaCase c = latent_case();
  const ReferenceOutput reference = *mla_reference(c.inputs(), c.all_rows(), {});
  for (const std::int64_t wrong : {1, 30}) {  // a decode, a prefill
    Tensor output = rounded(reference);
    for (std::int64_t i = 0; i < 20; ++i) output.set((wrong * 3 + 2) * 20 + i, 0.0f);
    EmulatedLatents device;
    const ScreenTable table = device.screen->compare_latent(c.inputs(), {&output});
    for (std::size_t i = 0; i < table.of.size(); ++i) {
      CAPTURE(i);
      CHECK((table.of[i].error > 0.5 * table.of[i].expected) ==
            (i == static_cast<std::size_t>(wrong * 3 + 2)));
    }
  }
}

TEST_CASE("prefills in e4m3 are left to the CPU") {
  const NaiveMlaCase c = latent_case();
  MlaReferenceInputs inputs = c.inputs();
  CHECK(RowScreen::has_latents(inputs));
  inputs.fp8_prefill = true;
  CHECK_FALSE(RowScreen::has_latents(inputs));
}

}  // namespace attnbench
