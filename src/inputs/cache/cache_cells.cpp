#include "inputs/cache/cache_cells.h"

#include <algorithm>
#include <cstring>

#include "metadata/int_math.h"

namespace attnbench {

std::int64_t page_tokens(const Problem& problem) {
  return std::int64_t{problem.kv_cache.block_size} * problem.dcp.world_size;
}

std::int64_t physical_blocks(const Problem& problem) {
  return std::max<std::int64_t>(1, problem.kv_cache.num_blocks);
}

std::vector<BlockOwner> block_owners(const Problem& problem, const Tensor& block_table) {
  std::vector<BlockOwner> owners(static_cast<std::size_t>(physical_blocks(problem)));
  for (std::int64_t b = 0; b < problem.num_requests(); ++b) {
    const std::int64_t pages =
        ceil_div(problem.batch[static_cast<std::size_t>(b)].seq_len, page_tokens(problem));
    const std::int32_t* row = block_table.data<std::int32_t>() + b * block_table.dim(1);
    for (std::int64_t page = 0; page < pages; ++page) {
      BlockOwner& owner = owners[static_cast<std::size_t>(row[page])];
      if (!owner.exists()) owner = {b, page};
    }
  }
  return owners;
}

std::vector<std::int64_t> first_rows(const Problem& problem) {
  std::vector<std::int64_t> starts{0};
  for (const Request& request : problem.batch) starts.push_back(starts.back() + request.seq_len);
  return starts;
}

void CellWriter::write_key_scales(float* block_scales, std::int64_t row, std::int64_t slot) const {
  const std::int64_t heads = stored_.key_scales.dim(1);
  for (std::int64_t head = 0; head < heads; ++head) {
    block_scales[head * block_size_ + slot] = stored_.key_scales.data<float>()[row * heads + head];
  }
}

void CellWriter::write(std::byte* plane, std::int64_t row, std::int64_t slot, bool is_key) const {
  const Tensor& codes = is_key ? stored_.key_codes : stored_.value_codes;
  const Tensor& scales = is_key ? stored_.key_scales : stored_.value_scales;
  const std::int64_t heads = codes.dim(1);
  const std::int64_t vector_bytes = codes.dim(2) * element_size(is_key);
  for (std::int64_t head = 0; head < heads; ++head) {
    std::byte* destination = plane + cell(slot, head, is_key);
    const std::int64_t source = row * heads + head;
    std::memcpy(destination, codes.bytes() + source * vector_bytes,
                static_cast<std::size_t>(vector_bytes));
    if (layout_.scale_offset >= 0) {
      std::memcpy(destination + layout_.scale_offset, scales.data<float>() + source, sizeof(float));
    }
  }
}

}  // namespace attnbench
