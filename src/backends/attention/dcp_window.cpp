#include "backends/attention/dcp_window.h"

#include <algorithm>
#include <numeric>

#include "metadata/int_math.h"
#include "metadata/parts/dcp.h"

namespace attnbench {

WindowRows window_rows(const Problem& problem, int rank, int left, const Tensor& table) {
  const DcpGroup group = DcpGroup::of(problem);
  const int block_size = problem.kv_cache.block_size;
  const auto local = [&](std::int64_t position) {
    return dcp_local_seq_len(checked_int32(position, "position"), rank, group);
  };
  struct Seen {
    std::int64_t request;
    std::int64_t position;
    int begin;  // local keys
    int end;
    int first_page;
  };
  std::vector<Seen> tokens;
  WindowRows rows;
  for (std::int64_t b = 0; b < problem.num_requests(); ++b) {
    const Request& request = problem.batch[static_cast<std::size_t>(b)];
    const std::int64_t context = request.seq_len - request.query_len;
    for (std::int64_t p = context; p < request.seq_len; ++p) {
      Seen seen{b, p, local(std::clamp<std::int64_t>(p - left, 0, context)), local(context), 0};
      seen.first_page = seen.begin / block_size;
      tokens.push_back(seen);
      rows.columns =
          std::max<std::int64_t>(rows.columns, ceil_div(seen.end, block_size) - seen.first_page);
    }
  }
  rows.columns = std::max<std::int64_t>(1, rows.columns);
  rows.block_table.assign(tokens.size() * static_cast<std::size_t>(rows.columns), 0);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const Seen& seen = tokens[t];
    const bool is_empty = seen.begin >= seen.end;
    const int base = seen.first_page * block_size;
    rows.seq_lens.push_back(is_empty ? 0 : seen.end - base);
    rows.positions.push_back(checked_int32(seen.position, "position"));
    rows.first_keys.push_back(base);
    const int token = static_cast<int>(t);
    const int window_left = seen.end - 1 - seen.begin;
    std::vector<WindowSlice>& slices = rows.slices;
    if (slices.empty()) slices.push_back({token, 0, std::max(0, window_left)});
    // A token without keys goes with any others.
    if (!is_empty && slices.back().window_left != window_left) {
      slices.push_back({token, 0, window_left});
    }
    ++slices.back().count;
    if (is_empty) continue;
    const int* row = table.data<std::int32_t>() + seen.request * table.dim(1) + seen.first_page;
    std::copy_n(row, ceil_div(seen.end, block_size) - seen.first_page,
                rows.block_table.begin() + static_cast<std::ptrdiff_t>(t) * rows.columns);
  }
  rows.query_start_loc.resize(tokens.size() + 1);
  std::iota(rows.query_start_loc.begin(), rows.query_start_loc.end(), 0);
  return rows;
}

}  // namespace attnbench
