#include <algorithm>
#include <cstddef>

#include "measure/cuda_measure.h"

namespace attnbench {
namespace {

constexpr std::size_t kSmallestBuffer = std::size_t{256} << 20;

class CudaCacheFlusher final : public CacheFlusher {
 public:
  CudaCacheFlusher(Runtime& runtime, const Stream& stream)
      : runtime_(runtime),
        stream_(stream),
        size_bytes_(std::max(kSmallestBuffer, 4 * runtime.device().l2_bytes)),
        buffer_(runtime.allocate(size_bytes_)) {}
  ~CudaCacheFlusher() override { runtime_.release_memory(buffer_); }
  CudaCacheFlusher(const CudaCacheFlusher&) = delete;
  CudaCacheFlusher& operator=(const CudaCacheFlusher&) = delete;

  void flush() override { runtime_.fill(buffer_, ++byte_, size_bytes_, stream_.handle()); }
  bool proven_cold() const override {
    const std::size_t cache = runtime_.device().l2_bytes;
    return cache > 0 && size_bytes_ >= 2 * cache;
  }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  Runtime& runtime_;
  const Stream& stream_;
  std::size_t size_bytes_;
  void* buffer_;
  unsigned char byte_ = 0;
};

}  // namespace

std::unique_ptr<CacheFlusher> make_cuda_cache_flusher(Runtime& runtime, const Stream& stream) {
  return std::make_unique<CudaCacheFlusher>(runtime, stream);
}

}  // namespace attnbench
