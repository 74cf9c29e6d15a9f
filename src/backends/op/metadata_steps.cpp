// A view of a host array becomes a view of its copy on the device by its offset; arrays that a
// slice owns are uploaded when the case is prepared.
#include "backends/op/metadata_steps.h"

#include <span>
#include <string>
#include <vector>

#include "inputs/cache/poison.h"
#include "metadata/batch_metadata.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

class MetadataSteps {
 public:
  explicit MetadataSteps(OpPipeline& op) : op_(op) {}

  void queue() {
    const OpInputs& inputs = op_.inputs();
    const BatchSplit split = split_batch(inputs.base, MetadataBuilder::kFlashAttnIx);
    const BatchMetadata meta = build_batch_metadata(arrays(), split);
    const BatchMetadata updated = update_block_table(meta, span_of<std::int32_t>("new_block_table"),
                                                     span_of<std::int64_t>("new_slot_mapping"));
    add_counts(meta);
    if (meta.decode) add_decodes(*meta.decode);
    if (meta.prefill) add_prefills(*meta.prefill);
    if (updated.decode) {
      add_view("updated_decode_block_table", "new_block_table", updated.decode->block_table);
    }
    if (updated.prefill) {
      add_view("updated_prefill_block_table", "new_block_table", updated.prefill->block_table);
    }
    add_view("updated_slot_mapping", "new_slot_mapping", updated.arrays.slot_mapping);
    op_.add_step([&op = op_, copies = copies_] {
      for (const attn::CopyParams& copy : copies) op.ops().copy(copy);
    });
  }

 private:
  template <typename T>
  std::span<const T> span_of(const char* name) const {
    const Tensor& tensor = op_.inputs().at(name);
    return {tensor.data<T>(), static_cast<std::size_t>(tensor.num_elements())};
  }

  BatchArrays arrays() const {
    BatchArrays arrays;
    arrays.query_start_loc = span_of<std::int32_t>("query_start_loc");
    arrays.seq_lens = span_of<std::int32_t>("seq_lens");
    arrays.block_table = span_of<std::int32_t>("block_table");
    arrays.block_table_columns = op_.inputs().at("block_table").dim(1);
    arrays.slot_mapping = span_of<std::int64_t>("slot_mapping");
    arrays.max_query_len = checked_int32(op_.problem().max_query_len(), "query_len");
    return arrays;
  }

  void add_counts(const BatchMetadata& meta) {
    const BatchSplit& s = meta.split;
    std::vector<std::int32_t> counts{s.num_decodes, s.num_prefills, s.num_decode_tokens,
                                     s.num_prefill_tokens};
    const DecodeSlice none;
    const DecodeSlice& decode = meta.decode ? *meta.decode : none;
    counts.insert(counts.end(),
                  {decode.max_query_len, decode.max_decode_seq_len, decode.use_graph ? 1 : 0,
                   meta.prefill ? meta.prefill->max_query_len : 0});
    add_made("batch_split", counts);
  }

  void add_decodes(const DecodeSlice& slice) {
    add_view("decode_query_start_loc", "query_start_loc", slice.query_start_loc);
    add_view("decode_seq_lens", "seq_lens", slice.seq_lens);
    add_view("decode_block_table", "block_table", slice.block_table);
  }

  void add_prefills(const PrefillSlice& slice) {
    add_made("prefill_query_start_loc", *slice.query_start_loc);
    add_made("prefill_key_start_loc", *slice.key_start_loc);
    add_view("prefill_block_table", "block_table", slice.block_table);
  }

  /// Elements of the operand `source`, as they lie on the device.
  template <typename T>
  void add_view(const char* name, const char* source, std::span<const T> view) {
    const auto* const device = op_.operand_of<T>(source);
    const Tensor& host = op_.inputs().at(source);
    add_copy(name, host.dtype(), device + (view.data() - host.data<T>()),
             static_cast<std::int64_t>(view.size()));
  }

  void add_made(const char* name, const std::vector<std::int32_t>& values) {
    add_copy(name, Dtype::kI32, op_.memory().upload(values, name),
             static_cast<std::int64_t>(values.size()));
  }

  void add_copy(const char* name, Dtype dtype, const void* source, std::int64_t count) {
    attn::CopyParams copy{};
    copy.source_element = copy.output_element = attn::Element::kU8;
    copy.source = source;
    copy.output = op_.output(name, poisoned_tensor(dtype, {count}));
    copy.extents[0] = copy.extents[1] = copy.extents[2] = 1;
    copy.width = count * static_cast<std::int64_t>(dtype_size(dtype));
    if (count > 0) copies_.push_back(copy);
  }

  OpPipeline& op_;
  std::vector<attn::CopyParams> copies_;
};

}  // namespace

void queue_metadata(OpPipeline& op) { MetadataSteps(op).queue(); }

}  // namespace attnbench
