#include "reference/mla/batch.h"

#include <doctest/doctest.h>

#include "reference/mla/mla_reference.h"
#include "reference/mla/naive_mla.h"

namespace attnbench {
namespace {

/// Lists of 8 positions for every token, some of them no key.
void make_sparse(NaiveMlaCase& c, MlaRandom& random) {
  c.topk_indices = Tensor(Dtype::kI32, {c.num_tokens() + c.padding, 8});
  c.num_decode_tokens = c.num_tokens();
  for (std::int64_t i = 0; i < c.topk_indices.num_elements(); ++i) {
    c.topk_indices.data<std::int32_t>()[i] = random.integer(-2, 30);
  }
}

/// Whether row `i` of the batch has just the entries of `positions`, in their order.
bool has_entries(const NaiveMlaCase& c, const MlaBatch& batch, std::size_t i, std::size_t request,
                 const std::vector<std::int64_t>& positions) {
  if (batch.num_entries[i] != static_cast<std::int64_t>(positions.size())) return false;
  const std::int64_t latent = c.dims.kv_lora_rank;
  const std::int64_t width = c.dims.entry_size();
  for (std::size_t n = 0; n < positions.size(); ++n) {
    const std::int64_t source = c.key_start_loc[request] + positions[n];
    const std::int64_t entry = batch.first_entry[i] + static_cast<std::int64_t>(n);
    for (std::int64_t k = 0; k < width; ++k) {
      const float expected = k < latent ? c.kv_c.at(source * latent + k)
                                        : c.k_pe.at(source * (width - latent) + k - latent);
      if (batch.entries.at(entry * width + k) != expected) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("every row finds its keys in its batch, wherever the batches are cut") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    MlaRandom random(seed);
    NaiveMlaCase c = random_mla_case(seed, 40, Dtype::kF32);
    if (seed % 3 == 0) make_sparse(c, random);
    const MlaReferenceInputs inputs = c.inputs();
    const std::vector<std::int32_t> rows = c.all_rows();
    const std::vector<std::int64_t> requests = requests_of_rows(c.query_start_loc, rows);
    const MlaBatcher batcher(inputs, c.dims, rows, random.pick({1, 2000, 20000, 1 << 20}));
    std::size_t next = 0;
    for (const MlaBatchPlan& plan : batcher.plans()) {
      const MlaBatch batch = batcher.load(plan);
      REQUIRE(plan.row_begin == static_cast<std::int64_t>(next));
      CHECK(batch.entries.dim(0) == plan.num_entries);
      std::int64_t pairs = 0;
      for (std::size_t i = 0; i < batch.tokens.size(); ++i, ++next) {
        CHECK(batch.tokens[i] == rows[next]);
        CHECK(batch.is_decode == (rows[next] < c.num_decode_tokens));
        const auto request = static_cast<std::size_t>(requests[next]);
        CHECK(has_entries(c, batch, i, request, naive_mla_keys(c, request, rows[next])));
        pairs += batch.num_entries[i];
      }
      CHECK(pairs == plan.num_pairs);
      REQUIRE(plan.row_end == static_cast<std::int64_t>(next));
    }
    CHECK(next == rows.size());
  }
}

TEST_CASE("rows of one request share its entries, however many there are") {
  NaiveMlaCase c;
  c.dims = {1, 8, 4, 2, 4};
  c.add_request(6, 400);
  c.add_request(6, 300);
  MlaRandom random(1);
  c.fill(Dtype::kF32, random);
  const std::vector<std::int32_t> rows{0, 3, 5, 6, 9, 11};
  const MlaReferenceInputs inputs = c.inputs();
  // For six rows of 144 bytes, but not for 300 entries of 120.
  const MlaBatcher batcher(inputs, c.dims, rows, 6 * 144);
  REQUIRE(batcher.plans().size() == 2);
  CHECK(batcher.plans()[0].row_end == 3);
  CHECK(batcher.plans()[0].num_entries == 400);
  CHECK(batcher.plans()[0].num_pairs == 395 + 398 + 400);
  CHECK(batcher.plans()[1].num_entries == 300);
}

TEST_CASE("a sample of the rows of a long request agrees with loops written out") {
  // More keys than a tile of the products and of the attention holds.
  NaiveMlaCase c;
  c.dims = {3, 16, 8, 4, 8};
  c.add_request(2, 700);
  c.num_decode_tokens = 2;
  c.add_request(64, 1500);
  MlaRandom random(2);
  c.fill(Dtype::kBF16, random);
  const std::vector<std::int32_t> rows{1, 2, 7, 8, 33, 65};
  CHECK(worst_mla_error(c, *mla_reference_mqa(c.inputs(), rows)) < 10);
  CHECK(worst_mla_error(c, *mla_reference_mha(c.inputs(), rows)) < 10);
  MlaAgreement agreement;
  CHECK(worst_mla_error(c, *mla_reference(c.inputs(), rows, {}, &agreement)) < 10);
  CHECK(agreement.compared_pairs == 6 * 3);
}

}  // namespace attnbench
