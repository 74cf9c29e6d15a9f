#include "measure/cuda_measure.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/test_folder.h"
#include "gpu/host_runtime_testing.h"
#include "jit/fake_compiler_testing.h"
#include "kernels/params_measure.h"
#include "measure/stream_gate.h"

namespace attnbench {
namespace {

class FakeClock final : public Clock {
 public:
  double now_s() const override { return time_s; }
  double time_s = 0;
};

/// A device that notes what is queued, in order. Work takes `time_us`, which events read.
class NotingRuntime : public HostRuntime {
 public:
  bool hold(StreamHandle, std::uint32_t* word, std::uint32_t value) override {
    notes.push_back("hold");
    held_word = word;
    held_value = value;
    return true;
  }
  EventHandle create_event() override {
    times_us.push_back(0);
    return reinterpret_cast<EventHandle>(times_us.size());
  }
  void record(EventHandle event, StreamHandle) override {
    notes.push_back("event");
    times_us[reinterpret_cast<std::size_t>(event) - 1] = now_us;
  }
  double elapsed_us(EventHandle first, EventHandle last) override {
    return times_us[reinterpret_cast<std::size_t>(last) - 1] -
           times_us[reinterpret_cast<std::size_t>(first) - 1];
  }
  void synchronize(StreamHandle) override { notes.push_back("wait"); }
  void begin_capture(StreamHandle) override { capturing = true; }
  GraphHandle end_capture(StreamHandle) override {
    capturing = false;
    if (capture_is_invalid) fail(ErrorKind::kCuda, "capture invalidated");
    return reinterpret_cast<GraphHandle>(this);
  }
  void launch_graph(GraphHandle, StreamHandle) override {
    notes.push_back("graph");
    now_us += 1;
  }
  void release_graph(GraphHandle graph) override { released_graphs += graph != nullptr; }

  bool is_open() const {
    return std::atomic_ref(*static_cast<std::uint32_t*>(held_word)).load() >= held_value;
  }

  std::vector<std::string> notes;
  std::vector<double> times_us;
  double now_us = 0;
  bool capturing = false;
  bool capture_is_invalid = false;  // what was captured broke it
  int released_graphs = 0;
  std::uint32_t* held_word = nullptr;
  std::uint32_t held_value = 0;
};

struct Device {
  NotingRuntime runtime;
  Stream stream{runtime};
  FakeClock clock;

  std::function<void()> work(const std::string& name, double time_us, double host_us = 0) {
    return [=, this] {
      if (runtime.capturing) return;
      runtime.notes.push_back(name);
      runtime.now_us += time_us;
      clock.time_s += host_us * 1e-6;
    };
  }
};

using Notes = std::vector<std::string>;

}  // namespace

TEST_CASE("parts are timed between events behind a held stream, and waited for once") {
  Device device;
  auto stopwatch =
      make_cuda_stopwatch(device.runtime, device.stream, device.clock, TimingMode::kStream);
  const std::vector<Part> parts = stopwatch->prepare(
      {{device.work("write", 3)}, {device.work("attend", 20), device.work("combine", 4)}});
  device.runtime.notes.clear();
  CHECK(stopwatch->time_us(parts) == std::vector<double>{3, 24});
  CHECK(device.runtime.notes ==
        Notes{"hold", "event", "write", "event", "attend", "combine", "event", "wait"});
  CHECK(device.runtime.is_open());
  CHECK(stopwatch->boundaries_take_time());
  CHECK(stopwatch->mode() == "stream");
}

namespace {

/// Notes when it is called.
class NotingWork final : public SampleWork {
 public:
  explicit NotingWork(NotingRuntime& runtime) : runtime_(runtime) {}
  void poison() override { note("poison"); }
  void rewrite() override { note("rewrite"); }
  void restore() override {
    runtime_.now_us += 100;
    note("restore");
  }
  void keep() override { note("keep"); }
  void finish(std::optional<std::int64_t>) override {}
  void end() override {}
  std::size_t first_reader() const override { return 0; }

 private:
  void note(const std::string& text) {
    runtime_.notes.push_back(text);
    if (text != "poison") CHECK_FALSE(runtime_.is_open());
  }
  NotingRuntime& runtime_;
};

class NotingFlusher final : public CacheFlusher {
 public:
  explicit NotingFlusher(NotingRuntime& runtime) : runtime_(runtime) {}
  void flush() override { runtime_.notes.push_back("flush"); }
  L2Mode leaves() const override { return L2Mode::kCold; }
  std::size_t size_bytes() const override { return 1; }

 private:
  NotingRuntime& runtime_;
};

}  // namespace

TEST_CASE("inputs come behind the gate, the query last, and outputs are kept before it opens") {
  Device device;
  NotingWork work(device.runtime);
  NotingFlusher flusher(device.runtime);
  auto stopwatch =
      make_cuda_stopwatch(device.runtime, device.stream, device.clock, TimingMode::kStream);
  const std::vector<Part> parts =
      stopwatch->prepare({{device.work("write", 3)}, {device.work("attend", 20)}});
  device.runtime.notes.clear();
  // What restoring takes is no part's time.
  CHECK(stopwatch->time_sample(parts, {&flusher, &work, 1}) == std::vector<double>{3, 20});
  CHECK(device.runtime.notes == Notes{"poison", "hold", "rewrite", "flush", "event", "write",
                                      "event", "restore", "event", "attend", "event", "keep",
                                      "wait"});
  device.runtime.notes.clear();
  stopwatch->time_sample(parts, {&flusher, &work, 0});
  CHECK(device.runtime.notes == Notes{"poison", "hold", "rewrite", "flush", "restore", "event",
                                      "write", "event", "attend", "event", "keep", "wait"});
}

TEST_CASE("lines of the cache that were asked to stay are let go before every flush") {
  Device device;
  NotingFlusher flusher(device.runtime);
  auto stopwatch =
      make_cuda_stopwatch(device.runtime, device.stream, device.clock, TimingMode::kStream);
  const std::vector<Part> parts = stopwatch->prepare({{device.work("attend", 20)}});
  device.runtime.device_settings[0].value = 4096;
  stopwatch->time_sample(parts, {nullptr, nullptr, 0});
  CHECK(device.runtime.device_settings[0].value == 4096);
  stopwatch->time_sample(parts, {&flusher, nullptr, 0});
  CHECK(device.runtime.device_settings[0].value == 0);
}

TEST_CASE("the stream is held while the host launches") {
  Device device;
  auto stopwatch =
      make_cuda_stopwatch(device.runtime, device.stream, device.clock, TimingMode::kStream);
  bool open_while_queueing = true;
  const auto parts =
      stopwatch->prepare({{[&] { open_while_queueing = device.runtime.is_open(); }}});
  for (int sample = 0; sample < 3; ++sample) {
    stopwatch->time_us(parts);
    CHECK_FALSE(open_while_queueing);
    CHECK(device.runtime.is_open());
  }
}

TEST_CASE("a gate that nobody opens opens by itself, and closes again") {
  NotingRuntime runtime;
  Stream stream(runtime);
  StreamGate gate(runtime, stream);
  for (int round = 0; round < 2; ++round) {
    gate.close();
    CHECK_FALSE(runtime.is_open());
    for (int i = 0; i < 500 && !runtime.is_open(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    CHECK(runtime.is_open());
    gate.open();
  }
}

TEST_CASE("the launch overhead is what the host takes, in the median of the samples") {
  Device device;
  auto stopwatch =
      make_cuda_stopwatch(device.runtime, device.stream, device.clock, TimingMode::kStream);
  for (const double host_us : {5.0, 9.0, 7.0}) {
    stopwatch->time_us(stopwatch->prepare({{device.work("attend", 20, host_us)}}));
  }
  CHECK(stopwatch->launch_overhead_us() == doctest::Approx(7));
}

TEST_CASE("in graph mode every part is captured once and its graph is launched") {
  Device device;
  {
    auto stopwatch =
        make_cuda_stopwatch(device.runtime, device.stream, device.clock, TimingMode::kGraph);
    const auto parts = stopwatch->prepare(
        {{device.work("attend", 20), device.work("combine", 4)}, {device.work("write", 3)}});
    device.runtime.notes.clear();
    CHECK(stopwatch->time_us(parts) == std::vector<double>{1, 1});
    CHECK(device.runtime.notes ==
          Notes{"hold", "event", "graph", "event", "graph", "event", "wait"});
    CHECK(stopwatch->mode() == "graph");
  }
  CHECK(device.runtime.released_graphs == 2);
}

TEST_CASE("a step that cannot be captured fails and leaves the stream usable") {
  Device device;
  auto stopwatch =
      make_cuda_stopwatch(device.runtime, device.stream, device.clock, TimingMode::kGraph);
  for (const bool capture_is_invalid : {false, true}) {
    device.runtime.capture_is_invalid = capture_is_invalid;
    CHECK_THROWS_WITH_AS(stopwatch->prepare({{[] { fail(ErrorKind::kCuda, "no"); }}}), "no", Error);
    CHECK_FALSE(device.runtime.capturing);
  }
}

TEST_CASE("cold is proven only where the size of the cache is known") {
  class Sized final : public HostRuntime {
   public:
    explicit Sized(std::size_t l2_bytes) { info_.l2_bytes = l2_bytes; }
    const DeviceInfo& device() const override { return info_; }
    void fill(void*, unsigned char byte, std::size_t size_bytes, StreamHandle) override {
      bytes.push_back(byte);
      filled = size_bytes;
    }
    std::vector<int> bytes;
    std::size_t filled = 0;

   private:
    DeviceInfo info_;
  };
  Sized unknown(0);
  Stream unknown_stream(unknown);
  CHECK(make_cuda_cache_flusher(unknown, unknown_stream)->leaves() == L2Mode::kWarm);
  Sized known(std::size_t{100} << 20);
  Stream stream(known);
  const auto flusher = make_cuda_cache_flusher(known, stream);
  CHECK(flusher->leaves() == L2Mode::kCold);
  flusher->flush();
  flusher->flush();
  CHECK(known.filled == std::size_t{400} << 20);
  CHECK(known.bytes == std::vector<int>{1, 2});  // other bytes each time
}

namespace {

/// A device that also notes what touches which memory, by letters in the order of their allocation.
class CachedRuntime final : public NotingRuntime {
 public:
  explicit CachedRuntime(std::size_t l2_bytes) : info_(HostRuntime::device()) {
    info_.l2_bytes = l2_bytes;
    on_launch = [this](const void* const* arguments) {
      const auto& params = *static_cast<const attn::ReadParams*>(arguments[0]);
      note("read", params.data, static_cast<std::size_t>(params.num_vectors) * 16);
      // No word of what is read has its highest bit set, or the kernel would write.
      CHECK((filled_with_.at(params.data) & 0x80) == 0);
    };
  }
  const DeviceInfo& device() const override { return info_; }
  void* allocate(std::size_t size_bytes) override {
    void* const memory = NotingRuntime::allocate(size_bytes);
    letters_.emplace(memory, static_cast<char>('A' + letters_.size()));
    return memory;
  }
  void fill(void* memory, unsigned char byte, std::size_t size_bytes, StreamHandle) override {
    note("fill", memory, size_bytes);
    filled_with_[memory] = byte;
  }

 private:
  void note(const std::string& what, const void* memory, std::size_t size_bytes) {
    CHECK(size_bytes >= 2 * info_.l2_bytes);
    CHECK(size_bytes <= allocations.at(const_cast<void*>(memory)));
    notes.push_back(what + " " + letters_.at(memory));
  }

  DeviceInfo info_;
  std::map<const void*, char> letters_;
  std::map<const void*, unsigned char> filled_with_;
};

/// With kernels, whose machine code is not looked at.
struct CachedDevice {
  explicit CachedDevice(std::size_t l2_bytes) : runtime(l2_bytes) {}
  CachedRuntime runtime;
  Stream stream{runtime};
  FakeClock clock;
  TestFolder folder;
  std::atomic<int> compilations{0};
  KernelStore store{std::make_unique<FakeCompiler>(compilations), DiskCache(folder.path()),
                    embedded_kernel_files()};
  CudaFlushers flushers{runtime, stream, store};
  CacheFlusher* flusher = &flushers.leaving(L2Mode::kClean);
};

}  // namespace

TEST_CASE("a clean cache was read last, from memory that is written once and never again") {
  CachedDevice device(std::size_t{100} << 20);
  // The kernel is launched before any stream is held: its first launch waits for the stream.
  CHECK(device.runtime.notes == Notes{"fill B", "read B"});
  device.runtime.notes.clear();
  device.flusher->flush();
  device.flusher->flush();
  CHECK(device.runtime.notes == Notes{"fill A", "read B", "fill A", "read B"});
  CHECK(device.flusher->size_bytes() == std::size_t{400} << 20);
  device.runtime.notes.clear();
  device.flushers.leaving(L2Mode::kCold).flush();
  CHECK(device.runtime.notes == Notes{"fill A"});
}

TEST_CASE("clean is proven where cold is") {
  CHECK(CachedDevice(std::size_t{50} << 20).flusher->leaves() == L2Mode::kClean);
  CHECK(CachedDevice(0).flusher->leaves() == L2Mode::kWarm);
}

TEST_CASE("the cache is cleaned behind the gate and before the query, out of every part's time") {
  CachedDevice device(std::size_t{50} << 20);
  NotingWork work(device.runtime);
  auto stopwatch =
      make_cuda_stopwatch(device.runtime, device.stream, device.clock, TimingMode::kStream);
  const std::vector<Part> parts =
      stopwatch->prepare({{[&] { device.runtime.notes.emplace_back("attend"); }}});
  device.runtime.notes.clear();
  stopwatch->time_sample(parts, {device.flusher, &work, 0});
  CHECK(device.runtime.notes == Notes{"poison", "hold", "rewrite", "fill A", "read B", "restore",
                                      "event", "attend", "event", "keep", "wait"});
}

}  // namespace attnbench
