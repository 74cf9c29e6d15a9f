#include "measure/memory_reader.h"

#include <cstdint>
#include <string>

#include "kernels/params_measure.h"

namespace attnbench {
namespace {

constexpr int kReadThreads = 256;
constexpr int kReadUnroll = 8;
constexpr int kReadCtasPerSm = 8;

}  // namespace

KernelSpec MemoryReader::spec(bool streaming) {
  return {"measure/read.cuh",
          "attn::read_memory",
          {{"int kThreads", std::to_string(kReadThreads)},
           {"int kUnroll", std::to_string(kReadUnroll)},
           {"bool kStreaming", streaming ? "true" : "false"}},
          0,
          streaming ? "streaming read" : "read"};
}

MemoryReader::MemoryReader(Runtime& runtime, const Stream& stream, KernelStore& kernels,
                           bool streaming)
    : stream_(stream), kernel_(runtime, kernels, spec(streaming)) {
  shape_.grid_x = std::int64_t{runtime.device().num_sms} * kReadCtasPerSm;
  shape_.threads = kReadThreads;
}

void MemoryReader::read(void* data, std::size_t size_bytes) {
  // The sink is never written, so that a word of the data does for it.
  kernel_.launch(shape_,
                 attn::ReadParams{data, static_cast<attn::i64>(size_bytes / 16),
                                  static_cast<unsigned int*>(data)},
                 stream_.handle());
}

}  // namespace attnbench
