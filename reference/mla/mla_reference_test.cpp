#include "reference/mla/mla_reference.h"

#include <doctest/doctest.h>

#include <set>

#include "core/error.h"
#include "reference/mla/naive_mla.h"

namespace attnbench::mla_reference_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// topk indices of every kind: -1, beyond the request, duplicates, none valid at all.
void make_sparse(NaiveMlaCase& c, std::uint64_t seed) {
  MlaRandom random(seed);
  const int topk = random.pick({1, 7, 32});
  c.topk_indices = Tensor(Dtype::kI32, {c.num_tokens() + c.padding, topk});
  c.num_decode_tokens = c.num_tokens();
  for (std::size_t b = 0; b < c.seq_lens.size(); ++b) {
    for (std::int64_t row = c.query_start_loc[b]; row < c.query_start_loc[b + 1]; ++row) {
      const bool none = random.chance(10);
      for (std::int64_t n = 0; n < topk; ++n) {
        const int outside = random.pick({-1, -7, c.seq_lens[b], c.seq_lens[b] + 5, 2000000000});
        const bool valid = !none && c.seq_lens[b] > 0 && random.chance(70);
        c.topk_indices.data<std::int32_t>()[row * topk + n] =
            valid ? random.integer(0, c.seq_lens[b] - 1) : outside;
      }
    }
  }
  if (!random.chance(50)) return;
  for (int row = 0; row < c.num_tokens(); ++row) {
    c.topk_lengths.push_back(random.integer(0, topk));
  }
}

Dtype dtype_of(std::uint64_t seed) {
  constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64};
  return kDtypes[seed % 4];
}

TEST_CASE("both forms agree with loops written out on hundreds of dense problems") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const NaiveMlaCase c = random_mla_case(seed, 40, dtype_of(seed));
    CHECK(worst_mla_error(c, *mla_reference_mqa(c.inputs(), c.all_rows())) < 10);
    CHECK(worst_mla_error(c, *mla_reference_mha(c.inputs(), c.all_rows())) < 10);
  }
}

TEST_CASE("sparse rows attend to their valid indices, duplicates as often as they are listed") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    NaiveMlaCase c = random_mla_case(seed, 40, dtype_of(seed));
    make_sparse(c, seed);
    CHECK(worst_mla_error(c, *mla_reference_mqa(c.inputs(), c.all_rows())) < 10);
    CHECK(worst_mla_error(c, *mla_reference_mha(c.inputs(), c.all_rows())) < 10);
  }
}

TEST_CASE("a sink takes its share of the output and none of the LSE") {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    NaiveMlaCase c = random_mla_case(seed, 40, dtype_of(seed));
    make_sparse(c, seed);
    const std::vector<float> sinks{0.7f, -kInfinite, kInfinite, -3};
    c.sinks.assign(sinks.begin(), sinks.begin() + c.dims.num_heads);
    CHECK(worst_mla_error(c, *mla_reference_mqa(c.inputs(), c.all_rows())) < 10);
    CHECK(worst_mla_error(c, *mla_reference(c.inputs(), c.all_rows())) < 10);
  }
}

TEST_CASE("computing both forms compares every row and head and returns the result") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    NaiveMlaCase c = random_mla_case(seed, 40, Dtype::kBF16);
    if (seed % 3 == 0) make_sparse(c, seed);
    MlaAgreement agreement;
    const auto result = mla_reference(c.inputs(), c.all_rows(), {}, &agreement);
    CHECK(worst_mla_error(c, *result) < 10);
    CHECK(agreement.compared_pairs == c.num_tokens() * c.dims.num_heads);
    CHECK(agreement.exempt_pairs == 0);
    CHECK(agreement.worst < 0.1);
  }
}

TEST_CASE("a second form that is too expensive is computed for some heads of every row") {
  MlaRandom random(1);
  NaiveMlaCase c;
  c.dims = {4, 16, 8, 4, 8};
  c.add_request(5, 30);
  c.add_request(1, 9);
  c.num_decode_tokens = 6;
  c.fill(Dtype::kF32, random);
  MlaReferenceOptions options;
  options.second_form_flops = 1;
  MlaAgreement agreement;
  const auto result = mla_reference(c.inputs(), c.all_rows(), options, &agreement);
  CHECK(worst_mla_error(c, *result) < 10);
  CHECK(agreement.compared_pairs == 6);
  options.second_form_flops = 0;
  agreement = {};
  CHECK(worst_mla_error(c, *mla_reference(c.inputs(), c.all_rows(), options, &agreement)) < 10);
  CHECK(agreement.compared_pairs == 0);
  options.second_form_flops = 1;
  // Decode and prefill rows are compared in different heads: not both in the one without NaN.
  c.num_decode_tokens = 5;
  for (std::int64_t i = 8 * 16; i < c.w_uk.num_elements(); ++i) c.w_uk.set(i, kNan);
  agreement = {};
  mla_reference(c.inputs(), c.all_rows(), options, &agreement);
  CHECK(agreement.compared_pairs > 0);
  CHECK(agreement.exempt_pairs > 0);
}

TEST_CASE("forms that disagree are an internal error that names the place") {
  ReferenceOutput a;
  a.rows = {3, 8};
  a.num_heads = 1;
  a.v_head_size = 2;
  a.output = {1, 2, 1e-3, 4};
  a.lse = {0.5, 1};
  ReferenceOutput b = a;
  const std::vector<int> heads{5};
  MlaAgreement agreement;
  check_mla_agreement(a, b, heads, true, agreement);
  CHECK(agreement.worst == 0);
  b.output[2] += 3e-9;  // below 1e-9 of the row's largest output, 4
  check_mla_agreement(a, b, heads, true, agreement);
  CHECK(agreement.worst == doctest::Approx(0.75));
  b.output[2] += 3e-9;
  try {
    check_mla_agreement(a, b, heads, true, agreement);
    FAIL("the difference went unnoticed");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kInternal);
    CHECK(std::string(error.what()).find("row 8, head 5") != std::string::npos);
  }
  b = a;
  b.lse[0] += 2e-9;
  CHECK_THROWS_AS(check_mla_agreement(a, b, heads, true, agreement), Error);
  b = a;
  b.output[1] = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS(check_mla_agreement(a, b, heads, true, agreement), Error);
  check_mla_agreement(a, b, heads, false, agreement);
  CHECK(agreement.exempt_pairs == 1);
}

TEST_CASE("chosen rows give the same numbers as all rows") {
  const NaiveMlaCase c = random_mla_case(17, 40, Dtype::kF32);
  REQUIRE(c.num_tokens() > 4);
  const std::vector<std::int32_t> rows{0, 2, 3, c.num_tokens() - 1};
  const auto some = mla_reference(c.inputs(), rows);
  CHECK(some->rows == rows);
  CHECK(worst_mla_error(c, *some) < 10);
}

TEST_CASE("a row without keys is zero with an LSE of minus infinity, whatever the weights") {
  MlaRandom random(2);
  NaiveMlaCase c;
  c.add_request(1, 0);
  c.add_request(3, 2);  // more queries than keys: its first row sees nothing
  c.num_decode_tokens = 1;
  c.fill(Dtype::kF32, random);
  c.w_uv.set(0, std::numeric_limits<float>::infinity());
  for (const auto& result :
       {mla_reference_mqa(c.inputs(), c.all_rows()), mla_reference_mha(c.inputs(), c.all_rows())}) {
    for (const std::size_t row : {0u, 1u}) {
      CHECK(result->lse[row] == -kInfinity);
      for (std::size_t v = 0; v < 4; ++v) CHECK(result->output[row * 4 + v] == 0);
    }
    CHECK(std::isfinite(result->lse[2]));
  }
}

TEST_CASE("NaN in keys that a row does not see never reaches it") {
  MlaRandom random(3);
  NaiveMlaCase c;
  c.dims = {2, 16, 8, 4, 8};
  c.add_request(4, 12);
  c.fill(Dtype::kF32, random);
  const auto clean = mla_reference(c.inputs(), c.all_rows());
  NaiveMlaCase::set_row(c.kv_c, 11, kNan);
  NaiveMlaCase::set_row(c.k_pe, 11, kNan);
  MlaAgreement agreement;
  const auto poisoned = mla_reference(c.inputs(), c.all_rows(), {}, &agreement);
  CHECK(agreement.exempt_pairs == 2);
  for (std::size_t i = 0; i < 3 * 2 * 8; ++i) CHECK(poisoned->output[i] == clean->output[i]);
  for (std::size_t i = 3 * 2 * 8; i < 4 * 2 * 8; ++i) CHECK(std::isnan(poisoned->output[i]));
}

TEST_CASE("NaN in cache rows that no index names never leaks into sparse attention") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    NaiveMlaCase c = random_mla_case(seed, 40, Dtype::kF32);
    make_sparse(c, seed + 100);
    std::set<std::int64_t> named;
    for (std::size_t b = 0; b < c.seq_lens.size(); ++b) {
      for (std::int64_t row = c.query_start_loc[b]; row < c.query_start_loc[b + 1]; ++row) {
        for (const std::int64_t j : naive_mla_keys(c, b, row)) {
          named.insert(c.key_start_loc[b] + j);
        }
      }
    }
    for (std::int64_t entry = 0; entry < c.kv_c.dim(0); ++entry) {
      if (named.contains(entry)) continue;
      NaiveMlaCase::set_row(c.kv_c, entry, kNan);
      NaiveMlaCase::set_row(c.k_pe, entry, kNan);
    }
    CHECK(worst_mla_error(c, *mla_reference(c.inputs(), c.all_rows())) < 10);
  }
}

TEST_CASE("a duplicated index weighs twice") {
  NaiveMlaCase c;
  c.dims = {1, 1, 1, 1, 1};
  c.softmax_scale = 1;
  c.add_request(1, 2);
  MlaRandom random(4);
  c.fill(Dtype::kF32, random);
  // Both keys score 0; the values are 3 and 9.
  for (std::int64_t i = 0; i < 2; ++i) c.query.set(i, 0);
  c.kv_c.set(0, 3);
  c.kv_c.set(1, 9);
  c.w_uv.set(0, 1);
  c.topk_indices = Tensor::from_i32(std::vector<std::int32_t>{1, 0, -1, 1}, {1, 4});
  const auto result = mla_reference(c.inputs(), c.all_rows());
  CHECK(result->output[0] == doctest::Approx(7).epsilon(1e-14));
  CHECK(result->lse[0] == doctest::Approx(std::log(3.0)).epsilon(1e-14));
}

TEST_CASE("a quantised latent query replaces the projection of decode rows only") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    NaiveMlaCase c = random_mla_case(seed, 30, Dtype::kF32);
    MlaRandom random(seed);
    c.latent_query =
        Tensor(Dtype::kF32, {c.num_decode_tokens, c.dims.num_heads, c.dims.entry_size()});
    for (std::int64_t i = 0; i < c.latent_query.num_elements(); ++i) {
      c.latent_query.set(i, random.normal());
    }
    MlaAgreement agreement;
    CHECK(worst_mla_error(c, *mla_reference(c.inputs(), c.all_rows(), {}, &agreement)) < 10);
    CHECK(agreement.compared_pairs == (c.num_tokens() - c.num_decode_tokens) * c.dims.num_heads);
    CHECK(worst_mla_error(c, *mla_reference_mha(c.inputs(), c.all_rows())) < 10);
  }
}

TEST_CASE("prefill rows read their own new tokens as they were before the cache") {
  MlaRandom random(5);
  NaiveMlaCase c;
  c.dims = {2, 16, 8, 4, 8};
  c.padding = 1;
  c.add_request(2, 9);
  c.add_request(3, 9);
  c.num_decode_tokens = 2;
  c.fill(Dtype::kF32, random);
  NaiveMlaCase read = c;  // what the rows really read
  Tensor unquantized = c.kv_c;
  for (std::int64_t i = 0; i < unquantized.num_elements(); ++i) {
    unquantized.set(i, 10 * c.kv_c.at(i));
  }
  for (std::int64_t position = 6; position < 9; ++position) {
    for (std::int64_t l = 0; l < 16; ++l) {
      const std::int64_t at = (c.key_start_loc[1] + position) * 16 + l;
      read.kv_c.set(at, unquantized.at(at));
    }
  }
  MlaReferenceInputs inputs = c.inputs();
  inputs.kv_c_unquantized = &unquantized;
  inputs.k_pe_unquantized = &c.k_pe;
  CHECK(worst_mla_error(read, *mla_reference(inputs, c.all_rows())) < 10);
}

TEST_CASE("fp8 prefill attends to e4m3 queries, keys and values") {
  MlaRandom random(6);
  NaiveMlaCase c;
  // P = Lkv = V = 1 and weights of 1: k_nope and v are kv_c itself.
  c.dims = {1, 1, 1, 1, 1};
  c.add_request(3, 7);
  c.fill(Dtype::kBF16, random);
  c.w_uk.set(0, 1);
  c.w_uv.set(0, 1);
  NaiveMlaCase rounded = c;
  for (Tensor* tensor : {&rounded.query, &rounded.kv_c, &rounded.k_pe}) {
    *tensor = convert(convert(*tensor, Dtype::kE4M3), Dtype::kBF16);
  }
  MlaReferenceInputs inputs = c.inputs();
  inputs.fp8_prefill = true;
  CHECK(worst_mla_error(rounded, *mla_reference(inputs, c.all_rows())) < 10);
  CHECK(worst_mla_error(rounded, *mla_reference_mqa(inputs, c.all_rows())) < 10);
}

TEST_CASE("no rows and no requests give an empty result") {
  NaiveMlaCase c;
  MlaRandom random(7);
  c.fill(Dtype::kF32, random);
  const auto result = mla_reference(c.inputs(), {});
  CHECK(result->output.empty());
  CHECK(result->lse.empty());
  CHECK(mla_reference_mqa(c.inputs(), {})->output.empty());
}

TEST_CASE("should_stop ends every form without a result") {
  const NaiveMlaCase c = random_mla_case(17, 40, Dtype::kF32);
  ReferenceOptions options;
  options.should_stop = [] { return true; };
  CHECK(!mla_reference_mqa(c.inputs(), c.all_rows(), options));
  CHECK(!mla_reference_mha(c.inputs(), c.all_rows(), options));
  CHECK(!mla_reference(c.inputs(), c.all_rows(), {options}));
  CHECK(!emulate_mla(c.inputs(), {}, c.all_rows(), options));
}

TEST_CASE("the result does not depend on the number of threads") {
  const NaiveMlaCase c = random_mla_case(17, 40, Dtype::kF32);
  ReferenceOptions one;
  one.num_threads = 1;
  ReferenceOptions three;
  three.num_threads = 3;
  CHECK(mla_reference(c.inputs(), c.all_rows(), {one})->output ==
        mla_reference(c.inputs(), c.all_rows(), {three})->output);
}

template <typename Change>
ErrorKind kind_of(const Change& change) {
  NaiveMlaCase c = random_mla_case(17, 40, Dtype::kF32);
  std::vector<std::int32_t> rows = c.all_rows();
  Tensor other;
  MlaReferenceInputs inputs = c.inputs();
  try {
    change(inputs, rows, other);
    mla_reference(inputs, rows);
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::kUsage;
}

TEST_CASE("inputs that do not fit together are refused") {
  using Inputs = MlaReferenceInputs;
  using Rows = std::vector<std::int32_t>;
  CHECK(kind_of([](Inputs& in, Rows&, Tensor&) { in.kv_c = nullptr; }) == ErrorKind::kShape);
  CHECK(kind_of([](Inputs& in, Rows&, Tensor&) { in.w_uv = in.w_uk; }) == ErrorKind::kShape);
  CHECK(kind_of([](Inputs& in, Rows&, Tensor& other) {
          other = Tensor(Dtype::kF32, {in.k_pe->dim(0), in.k_pe->dim(1) + 1});
          in.k_pe = &other;
        }) == ErrorKind::kShape);
  CHECK(kind_of([](Inputs& in, Rows&, Tensor& other) {
          other = Tensor(Dtype::kI8, in.query->shape());
          in.query = &other;
        }) == ErrorKind::kDtype);
  CHECK(kind_of([](Inputs& in, Rows& rows, Tensor& other) {
          other = Tensor(Dtype::kI64, {static_cast<std::int64_t>(rows.size()), 4});
          in.topk_indices = &other;
        }) == ErrorKind::kDtype);
  CHECK(kind_of([](Inputs&, Rows& rows, Tensor&) { rows.push_back(rows.back()); }) ==
        ErrorKind::kValue);
  CHECK(kind_of([](Inputs& in, Rows&, Tensor&) { in.num_decode_tokens = 100000; }) ==
        ErrorKind::kValue);
}

TEST_CASE("emulation in f32 is the reference up to f32 rounding") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const NaiveMlaCase c = random_mla_case(seed, 40, Dtype::kBF16);
    const auto exact = mla_reference(c.inputs(), c.all_rows());
    const auto emulated = emulate_mla(c.inputs(), {Dtype::kF32, Dtype::kF32}, c.all_rows());
    for (std::size_t i = 0; i < exact->output.size(); ++i) {
      CHECK(std::abs(emulated->output[i] - exact->output[i]) < 2e-4);
    }
    for (std::size_t i = 0; i < exact->lse.size(); ++i) {
      if (exact->lse[i] == -kInfinity) {
        CHECK(emulated->lse[i] == -kInfinity);
      } else {
        CHECK(std::abs(emulated->lse[i] - exact->lse[i]) < 2e-4);
      }
    }
  }
}

TEST_CASE("prefill rows can be emulated in the form of the kernels, for some heads") {
  const EmulationRule rule{Dtype::kBF16, Dtype::kBF16};
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const NaiveMlaCase c = random_mla_case(seed, 40, Dtype::kBF16);
    const std::vector<std::int32_t> all = c.all_rows();
    const ReferenceOutput whole = *emulate_mla(c.inputs(), rule, all);
    const std::vector<int> heads{static_cast<int>(c.dims.num_heads) - 1};
    const ReferenceOutput part = *emulate_mla_prefills(c.inputs(), rule, all, heads);
    CHECK(static_cast<std::int64_t>(part.rows.size()) == c.num_tokens() - c.num_decode_tokens);
    for (std::size_t i = 0; i < part.rows.size(); ++i) {
      const auto row = static_cast<std::size_t>(part.rows[i]);
      const auto width = static_cast<std::size_t>(part.v_head_size);
      const auto head = static_cast<std::size_t>(heads[0]);
      CHECK(part.lse[i] == whole.lse[head * all.size() + row]);
      for (std::size_t v = 0; v < width; ++v) {
        const auto from = (row * static_cast<std::size_t>(c.dims.num_heads) + head) * width + v;
        CHECK(part.output[i * width + v] == whole.output[from]);
      }
    }
  }
}

TEST_CASE("a few rows of a long request are emulated in MQA form, and in MHA form when asked") {
  MlaRandom random(5);
  NaiveMlaCase c;
  c.dims = {16, 512, 128, 16, 128};
  c.add_request(4, 6000);
  c.fill(Dtype::kBF16, random);
  const EmulationRule rule{Dtype::kBF16, Dtype::kBF16};
  const std::vector<int> heads{9};
  const ReferenceOutput exact = *mla_reference_mqa(c.inputs(), c.all_rows());
  const ReferenceOutput cheap = *emulate_mla(c.inputs(), rule, c.all_rows());
  const ReferenceOutput as_run = *emulate_mla_prefills(c.inputs(), rule, c.all_rows(), heads);
  for (std::size_t row = 0; row < 4; ++row) {
    const double error = as_run.lse[row] - exact.lse[9 * 4 + row];
    CHECK(std::abs(error) > 0);
    CHECK(std::abs(error) < 1e-2);
    CHECK(as_run.lse[row] != cheap.lse[9 * 4 + row]);
  }
  NaiveMlaCase sparse = c;
  sparse.topk_indices = Tensor(Dtype::kI32, {4, 1});
  CHECK(emulate_mla_prefills(sparse.inputs(), rule, c.all_rows(), heads)->rows.empty());
}

TEST_CASE("emulation rounds the intermediates of the form that a row runs in") {
  NaiveMlaCase c;
  c.dims = {1, 2, 1, 1, 1};
  c.softmax_scale = 1;
  c.add_request(1, 1);
  MlaRandom random(8);
  c.fill(Dtype::kF32, random);
  // One key, so o_l = kv_c = (257, 257), which bf16 rounds to (256, 256): 514 instead of 516,
  // which it rounds to 512 (a tie to even of steps of 4).
  c.kv_c.set(0, 257);
  c.kv_c.set(1, 257);
  c.w_uv.set(0, 1);
  c.w_uv.set(1, 1.0078125f);  // 1 + 2^-7
  c.num_decode_tokens = 1;
  const EmulationRule rule{Dtype::kBF16, Dtype::kBF16};
  const auto decode = emulate_mla(c.inputs(), rule, c.all_rows());
  CHECK(decode->output[0] == 512);
  // Prefill reads a 16-bit workspace, so kv_c itself is (256, 256) there.
  c.num_decode_tokens = 0;
  const auto prefill = emulate_mla(c.inputs(), rule, c.all_rows());
  CHECK(prefill->output[0] == 512);
  // The score shows ql, and k_nope of the prefill form: q * (w0 kv0 + w1 kv1) with q = 3.
  c.query.set(0, 3);
  c.query.set(1, 0);
  c.w_uk.set(0, 1.0078125f);
  c.w_uk.set(1, 0);
  c.kv_c.set(0, 130);
  const auto decode_lse = emulate_mla(c.inputs(), {Dtype::kBF16, Dtype::kBF16}, c.all_rows());
  // k_nope = 131.015625 -> 131; the score, 393 and not 393.046875, keeps what bf16 would not.
  CHECK(decode_lse->lse[0] == 393);
  // ql = 3.0234375 -> 3.03125 (a tie to even of steps 2^-6); score 381.9375, not 380.953125.
  c.num_decode_tokens = 1;
  c.kv_c.set(0, 126);
  CHECK(emulate_mla(c.inputs(), rule, c.all_rows())->lse[0] == 381.9375);
}

}  // namespace
}  // namespace attnbench::mla_reference_test
