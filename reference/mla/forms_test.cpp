#include "reference/mla/forms.h"

#include <doctest/doctest.h>

#include "reference/mla/naive_mla.h"

namespace attnbench {

TEST_CASE(
    "the emulation of a prefill rounds its entries in either form, that of a decode does not") {
  NaiveMlaCase c;
  c.dims = {2, 16, 8, 4, 8};
  c.add_request(3, 40);
  MlaRandom random(5);
  c.fill(Dtype::kF32, random);
  const MlaReferenceInputs inputs = c.inputs();
  const std::vector<std::int32_t> rows = c.all_rows();
  const EmulationRule rule;
  MlaForms<float> forms(inputs, c.dims, &rule, {1, {}});
  const std::vector<int> heads = forms.all_heads();
  const MlaBatcher batcher(inputs, c.dims, rows);
  MlaBatch prefill = batcher.load(batcher.plans().front());
  MlaBatch rounded = prefill;
  for (std::int64_t i = 0; i < rounded.entries.num_elements(); ++i) {
    rounded.entries.set(i, round_to(rule.storage, rounded.entries.at(i)));
  }
  MlaBatch decode = prefill;
  rounded.is_decode = decode.is_decode = true;
  const std::vector<double> mqa = forms.mqa(prefill, heads)->output;
  CHECK(mqa == forms.mqa(rounded, heads)->output);
  CHECK(mqa != forms.mqa(decode, heads)->output);
  const std::vector<double> mha = forms.mha(prefill, heads)->output;
  CHECK(mha == forms.mha(rounded, heads)->output);
  CHECK(mha != forms.mha(decode, heads)->output);
}

TEST_CASE("entries expanded for e4m3 attention are rounded to the query's type, then to e4m3") {
  NaiveMlaCase c;
  c.dims = {1, 16, 8, 4, 8};
  c.add_request(1, 1);  // one key, whose value is the output
  MlaRandom random(6);
  c.fill(Dtype::kBF16, random);
  MlaReferenceInputs inputs = c.inputs();
  inputs.fp8_prefill = true;
  const std::vector<std::int32_t> rows = c.all_rows();
  MlaForms<double> forms(inputs, c.dims, nullptr, {1, {}});
  const MlaBatcher batcher(inputs, c.dims, rows);
  const auto output = forms.mha(batcher.load(batcher.plans().front()), forms.all_heads());
  for (std::int64_t v = 0; v < 8; ++v) {
    double value = 0;
    for (std::int64_t l = 0; l < 16; ++l) value += double{c.kv_c.at(l)} * c.w_uv.at(l * 8 + v);
    const float in_bf16 = round_to(Dtype::kBF16, static_cast<float>(value));
    CHECK(output->output[static_cast<std::size_t>(v)] == round_to(Dtype::kE4M3, in_bf16));
  }
}

}  // namespace attnbench
