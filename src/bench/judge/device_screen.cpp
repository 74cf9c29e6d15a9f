#include "bench/judge/device_screen.h"

#include <cmath>
#include <utility>

#include "backends/kernel_params.h"
#include "core/error.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/measure/screen.h"
#include "reference/row_blocks.h"

namespace attnbench {
namespace {

/// What each token sees, as the reference finds it and not as kernels do: always one interval,
/// since mm_prefix ranges hold the position whose window they add to.
struct Visible {
  std::vector<std::int32_t> begin;
  std::vector<std::int32_t> end;

  Visible(const AttentionMath& math, const ReferenceInputs& inputs) {
    std::vector<KeyRange> ranges;
    for (std::size_t b = 0; b < inputs.seq_lens.size(); ++b) {
      const std::int64_t seq_len = inputs.seq_lens[b];
      for (std::int64_t t = inputs.query_start_loc[b]; t < inputs.query_start_loc[b + 1]; ++t) {
        ranges.clear();
        append_visible_ranges(math, static_cast<std::int64_t>(b),
                              t - inputs.query_start_loc[b + 1] + seq_len, seq_len, ranges);
        if (ranges.size() > 1) fail(ErrorKind::kInternal, "screening: row {} sees no interval", t);
        begin.push_back(ranges.empty() ? 0 : static_cast<std::int32_t>(ranges[0].begin));
        end.push_back(ranges.empty() ? 0 : static_cast<std::int32_t>(ranges[0].end));
      }
    }
  }
};

ScreenedRow row_of(const attn::ScreenRecord& record) {
  ScreenedRow row;
  row.error = std::sqrt(record.error_squares);
  row.expected = std::sqrt(record.reference_squares);
  row.size = std::max(row.expected, kRowSpread * std::sqrt(record.spread_squares));
  row.largest = record.largest_error;
  row.lse = record.lse;
  row.misplaced = record.misplaced;
  return row;
}

class DeviceScreen final : public RowScreen {
 public:
  DeviceScreen(Ops& ops, cuda::Launcher& launcher) : screen_(ops, launcher) {}
  explicit DeviceScreen(std::shared_ptr<Ops> ops)
      : ops_(std::move(ops)), screen_(*ops_, static_cast<CudaOps&>(*ops_).launcher()) {}

  ScreenTable compare(const AttentionMath& math, const ReferenceInputs& inputs,
                      const ScreenedOutput& output) override {
    const Visible visible(math, inputs);
    cuda::ScreenInputs on_device;
    on_device.query = inputs.query;
    on_device.key = inputs.key;
    on_device.value = inputs.value;
    on_device.query_start_loc = inputs.query_start_loc;
    on_device.seq_lens = inputs.seq_lens;
    on_device.key_start_loc = inputs.key_start_loc;
    on_device.visible_begin = visible.begin;
    on_device.visible_end = visible.end;
    on_device.softmax_scale = math.softmax_scale;
    on_device.soft_cap = math.logits_soft_cap;
    on_device.alibi = alibi_of(math.alibi);
    on_device.alibi_slopes = inputs.alibi_slopes;
    on_device.sinks = inputs.sinks;
    ScreenTable table;
    table.is_float64 = true;
    table.num_heads = inputs.query->dim(1);
    for (std::int32_t row = 0; row < inputs.query_start_loc.back(); ++row)
      table.rows.push_back(row);
    for (const attn::ScreenRecord& record : screen_.compare(
             on_device, {output.output, output.scale(), output.limit(), output.e4m3_scale > 0})) {
      table.of.push_back(row_of(record));
    }
    return table;
  }

 private:
  std::shared_ptr<Ops> ops_;  // of a screening that shares them
  cuda::Screen screen_;
};

}  // namespace

std::unique_ptr<RowScreen> make_device_screen(Ops& ops, cuda::Launcher& launcher) {
  return std::make_unique<DeviceScreen>(ops, launcher);
}

std::unique_ptr<RowScreen> make_device_screen(std::shared_ptr<Ops> ops) {
  return std::make_unique<DeviceScreen>(std::move(ops));
}

}  // namespace attnbench
