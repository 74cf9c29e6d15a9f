// Times launches on the first CUDA device: the median of event-timed ones with a cold second-level
// cache, on data that is not all alike.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "gpu/stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench {

inline constexpr int kLaunches = 20;
inline constexpr int kWarmUps = 5;
inline constexpr std::size_t kFlushBytes = std::size_t{256} << 20;

class Bench {
 public:
  Bench(CudaOps& ops, const std::string& filter)
      : ops_(ops), filter_(filter), flush_(ops.allocate(kFlushBytes, "flush")) {}

  bool takes(const std::string& name) const { return std::regex_search(name, filter_); }
  bool takes_any(const std::vector<std::string>& names) const {
    return std::any_of(names.begin(), names.end(), [&](const auto& name) { return takes(name); });
  }

  /// Device memory with normal values of the element, so that no codes are all alike.
  void* normals(std::size_t count, attn::Element element) {
    std::vector<std::uint16_t> halves(count);
    std::mt19937 random(1);
    // Sixteen-bit floats around 1 with random signs and mantissas, in either format.
    for (std::uint16_t& half : halves) half = static_cast<std::uint16_t>(random() & 0xBFFFu);
    return upload(halves.data(), count * static_cast<std::size_t>(cuda::size_of_element(element)));
  }
  void* upload(const void* data, std::size_t size_bytes) {
    buffers_.push_back(ops_.allocate(size_bytes, "tensor"));
    ops_.upload(*buffers_.back(), data, size_bytes);
    return buffers_.back()->data();
  }
  void* room(std::size_t size_bytes) {
    buffers_.push_back(ops_.allocate(size_bytes, "room"));
    return buffers_.back()->data();
  }

  /// The same for sizes that the host had better not draw number by number.
  void* many_normals(std::int64_t size_bytes) {
    std::vector<std::uint8_t> pattern(1 << 20);
    std::mt19937 random(1);
    for (std::size_t i = 0; i < pattern.size(); i += 2) {
      const auto half = static_cast<std::uint16_t>(random() & 0xBFFFu);
      std::memcpy(pattern.data() + i, &half, sizeof half);
    }
    return repeated(static_cast<std::size_t>(size_bytes), pattern);
  }
  template <typename T>
  T* numbers(const std::vector<T>& values) {
    return static_cast<T*>(upload(values.data(), values.size() * sizeof(T)));
  }

  /// Device memory filled with a pattern again and again.
  void* repeated(std::size_t size_bytes, const std::vector<std::uint8_t>& pattern) {
    auto* const first = static_cast<std::byte*>(room(size_bytes));
    Buffer& buffer = *buffers_.back();
    std::vector<std::uint8_t> all(size_bytes);
    for (std::size_t i = 0; i < size_bytes; i += pattern.size()) {
      std::copy_n(pattern.begin(), std::min(pattern.size(), size_bytes - i),
                  all.begin() + static_cast<std::ptrdiff_t>(i));
    }
    ops_.upload(buffer, all.data(), size_bytes);
    return first;
  }

  /// `amount` of bytes, or of operations, and what a billion of them a second is called.
  void time(const std::string& name, double amount, const std::function<void()>& launch,
            const char* unit = "GB/s") {
    if (!takes(name)) return;
    std::vector<double> times_us;
    for (int i = 0; i < kWarmUps + kLaunches; ++i) {
      ops_.poison(*flush_);
      Event first(ops_.runtime());
      Event last(ops_.runtime());
      first.record(ops_.stream());
      launch();
      last.record(ops_.stream());
      const double time_us = Event::elapsed_us(first, last);
      if (i >= kWarmUps) times_us.push_back(time_us);
    }
    std::sort(times_us.begin(), times_us.end());
    const double median_us = times_us[times_us.size() / 2];
    fmt::print("{:<44} {:>9.1f} us  {:>7.0f} {}\n", name, median_us, amount / median_us * 1e-3,
               unit);
    std::fflush(stdout);
    ops_.synchronize();
  }

 private:
  CudaOps& ops_;
  std::regex filter_;
  std::unique_ptr<Buffer> flush_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

/// Opens the device, runs all of `sections` and names the kernels that were launched.
inline int run_sections(
    int argc, char** argv,
    const std::function<void(CudaOps& ops, const std::string& filter)>& sections) {
  try {
    const std::unique_ptr<CudaOps> ops = make_cuda_ops(0, argc > 1 ? argv[1] : "");
    const DeviceInfo& device = ops->runtime().device();
    fmt::print("{}, {} multiprocessors\n", device.name, device.num_sms);
    sections(*ops, argc > 2 ? argv[2] : "");
    for (const KernelInfo& kernel : ops->take_kernels()) {
      fmt::print("{:<52} {:>3} registers, {} bytes spilled\n", kernel.name, kernel.registers,
                 kernel.spill_bytes);
    }
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.full_message());
    return 4;
  }
}

}  // namespace attnbench
