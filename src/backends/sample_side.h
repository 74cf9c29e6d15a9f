// What a pipeline lets a measurement do around each of its timed samples: give it inputs that no
// run has seen, and keep what came out. A pipeline only names its memory here; who measures decides
// when something is overwritten, on the stream that the pipeline works on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "backends/device_buffers.h"
#include "inputs/redraw.h"
#include "ops/operation_table.h"

namespace attnbench {

struct PipelineOutput;

/// Pointers are memory of the pipeline's device, which lives as long as the pipeline.
struct SampleSide {
  /// Elements of the query, or of what stands for it: [rows, row_elements] side by side, whose
  /// first one is element `first_index` of the tensor that signs are drawn for.
  struct Query {
    void* memory = nullptr;
    int element_bytes = 0;  // 1, 2 or 4
    std::int64_t rows = 0;
    std::int64_t row_elements = 0;
    std::int64_t first_index = 0;
    std::int64_t index_stride = 0;  // of a row in that tensor
  };
  /// Where block `unit` of keys, of values or of their scales lies: `bytes` from
  /// first + unit * stride_bytes on.
  struct Plane {
    std::byte* first = nullptr;
    std::int64_t stride_bytes = 0;
    std::int64_t bytes = 0;
  };
  /// A whole buffer that the steps write.
  struct Output {
    void* memory = nullptr;
    std::int64_t bytes = 0;
    attn::Element element = attn::Element::kU8;
  };

  std::vector<Query> query;
  std::optional<RedrawBlocks> blocks;
  std::vector<Plane> planes;  // of each block
  std::vector<Output> outputs;
  /// Poisoned by Pipeline::poison_outputs(), outputs among it.
  std::size_t workspace_bytes = 0;
  /// Number of the first step that reads the query.
  std::size_t first_reader = 0;
  /// Queued behind the steps: brings what they left elsewhere to the outputs. May be empty.
  std::function<void()> collect;
  /// Reads the outputs as they are in memory; not what is kept beside them.
  std::function<PipelineOutput()> read;

  /// The whole buffer that begins at `data`.
  void add_output(DeviceBuffers& memory, const void* data, attn::Element element) {
    Buffer& buffer = memory.starting_at(data);
    outputs.push_back({buffer.data(), static_cast<std::int64_t>(buffer.size_bytes()), element});
  }
  /// `rows` rows of a tensor of its own.
  void add_query(const void* data, attn::Element element, std::int64_t rows,
                 std::int64_t row_elements) {
    query.push_back({const_cast<void*>(data), static_cast<int>(element_size(element)), rows,
                     row_elements, 0, row_elements});
  }
};

}  // namespace attnbench
