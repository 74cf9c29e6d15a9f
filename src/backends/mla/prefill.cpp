// Prefill over keys and values expanded to all heads of a rank: new tokens causally, the context in
// chunks, merged (semantics §8.6).
#include <algorithm>

#include "backends/mla/context.h"
#include "backends/mla/expand.h"
#include "backends/mla/work.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

using attn::i64;

class MlaPrefill {
 public:
  explicit MlaPrefill(MlaWork& work) : work_(work), expand_(work), context_(work, expand_) {}

  void add_steps() {
    const std::vector<std::int32_t> lens =
        query_lens_of(work_.problem, work_.plan.batch.num_decodes);
    const std::vector<Expanded> fresh = add_new_keys();
    std::vector<std::function<void()>> attends;
    std::vector<Partial> suffixes;
    for (const MlaRank& rank : work_.ranks) {
      attn::AttendParams attend = expand_.attend_params(rank, of(fresh, rank), lens, true);
      if (!work_.plan.chunks) {
        attend.lse = lse_of(rank);
        attend.lse_stride = work_.num_rows;
        attends.push_back(
            expand_.attend_into(rank, attend, output_of(rank), work_.element, output_stride()));
        continue;
      }
      suffixes.push_back(expand_.make_partial(rank, "new tokens"));
      attend.lse = suffixes.back().lse;
      attend.lse_stride = tokens();
      attends.push_back(expand_.attend_into(rank, attend, suffixes.back().output,
                                            attn::Element::kF32, rank.heads * work_.sizes.value));
    }
    work_.add_attend_step("attend_new_tokens", run_all(attends));
    if (work_.plan.chunks) add_merge(context_.add_steps(), suffixes);
  }

 private:
  template <typename T>
  static const T& of(const std::vector<T>& all, const MlaRank& rank) {
    return all[static_cast<std::size_t>(rank.index)];
  }
  i64 tokens() const { return work_.plan.batch.num_prefill_tokens; }
  i64 first_token() const { return work_.plan.batch.num_decode_tokens; }
  i64 output_stride() const { return work_.sizes.heads * work_.sizes.value; }
  float* lse_of(const MlaRank& rank) const {
    return work_.lse + rank.first_head * work_.num_rows + first_token();
  }
  char* output_of(const MlaRank& rank) const {
    return MlaWork::at(work_.output,
                       (first_token() * work_.sizes.heads + rank.first_head) * work_.sizes.value,
                       work_.element);
  }

  std::vector<Expanded> add_new_keys() {
    const void* kv_c =
        MlaWork::at(work_.new_kv_c, first_token() * work_.sizes.latent, work_.element);
    const void* k_pe = expand_.add_new_rope(
        MlaWork::at(work_.new_k_pe, first_token() * work_.sizes.rope, work_.element));
    std::vector<Expanded> fresh;
    std::vector<std::function<void()>> expansions;
    for (const MlaRank& rank : work_.ranks) {
      fresh.push_back(expand_.make_expanded(rank, tokens(), "new"));
      expansions.push_back(expand_.expansion(
          rank, {kv_c, work_.sizes.latent, k_pe, work_.sizes.rope, tokens()}, fresh.back()));
    }
    work_.add_step(
        side_step("project_new_tokens", run_all(expansions), 0, expand_.flops(tokens())));
    return fresh;
  }

  /// Context (prefix) with new tokens (suffix). The heads of one of several ranks are merged by
  /// themselves and then put beside the others.
  void add_merge(const std::vector<Partial>& contexts, const std::vector<Partial>& suffixes) {
    std::vector<attn::MergeParams> merges;
    std::vector<attn::CopyParams> places;
    for (const MlaRank& rank : work_.ranks) {
      attn::MergeParams merged = expand_.merge_params(rank, of(contexts, rank), of(suffixes, rank));
      merged.num_merged = work_.plan.chunks->prefill_tokens_with_context;
      merged.output_element = work_.element;
      merged.output = output_of(rank);
      merged.output_lse = lse_of(rank);
      merged.output_lse_stride = work_.num_rows;
      if (work_.has_ranks()) {
        const i64 row = rank.heads * work_.sizes.value;
        merged.output = work_.workspace(tokens() * row, work_.element, "merged");
        attn::CopyParams place{};
        place.source_element = place.output_element = work_.element;
        place.source = merged.output;
        place.source_strides[1] = row;
        place.output = output_of(rank);
        place.output_strides[1] = output_stride();
        place.extents[0] = place.extents[2] = 1;
        place.extents[1] = tokens();
        place.width = row;
        places.push_back(place);
      }
      merges.push_back(merged);
    }
    work_.add_each("merge_context", true, &Ops::merge, std::move(merges));
    if (!places.empty()) work_.add_each("place_heads", false, &Ops::copy, std::move(places));
  }

  MlaWork& work_;
  MlaExpand expand_;
  MlaContext context_;
};

}  // namespace

void add_mla_prefill(MlaWork& work) { MlaPrefill(work).add_steps(); }

}  // namespace attnbench
