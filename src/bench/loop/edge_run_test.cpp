#include "bench/loop/edge_run.h"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "ops/cuda/testing/host_device_testing.h"
#include "ops/ops.h"

namespace attnbench::edge_run_test {
namespace {

/// A pipeline with two buffers, whose step is the test's.
class TwoBuffers final : public Pipeline {
 public:
  using Work = std::function<void(Buffer& key, Buffer& output)>;
  TwoBuffers(Ops& ops, Work work)
      : key_(ops.allocate(1024, "key")),
        output_(ops.allocate(64, "output")),
        work_(std::move(work)),
        steps_{{"attend", true, 0, 0, [this] { work_(*key_, *output_); }}} {}

  const std::vector<Step>& steps() const override { return steps_; }
  void poison_outputs() override {}
  PipelineOutput read_output(bool) override {
    PipelineOutput output;
    output.output = Tensor(Dtype::kU8, {64});
    std::memcpy(output.output.bytes(), output_->data(), 64);
    return output;
  }

 private:
  std::unique_ptr<Buffer> key_;
  std::unique_ptr<Buffer> output_;
  Work work_;
  std::vector<Step> steps_;
};

class Turn final : public CaseRun {
 public:
  explicit Turn(TwoBuffers::Work work) : work_(std::move(work)) {}
  std::unique_ptr<Pipeline> prepare(Ops& ops) override {
    return std::make_unique<TwoBuffers>(ops, work_);
  }
  std::string check_stored(const PipelineOutput&) override { return ""; }
  std::optional<Judgement> judge(const PipelineOutput&) override { return std::nullopt; }
  void add_tensors(const PipelineOutput&, TensorList&) const override {}

 private:
  TwoBuffers::Work work_;
};

void ignore(const std::string&) {}

std::string complaint(Ops& ops, const TwoBuffers::Work& work) {
  Turn turn(work);
  try {
    run_at_edges(turn, ops, ignore);
  } catch (const Error& error) {
    return error.full_message();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

unsigned char read(Buffer& buffer, std::ptrdiff_t at) {
  return static_cast<const volatile unsigned char*>(buffer.data())[at];
}

/// A device that loses itself where `fault` says so, after which every call fails.
struct FaultingDevice {
  HostDevice device;
  std::function<bool(const HostRuntime&, Buffer& key)> fault;

  std::string complaint_of_run() {
    return complaint(*device.ops, [this](Buffer& key, Buffer&) {
      if (fault(*device.runtime, key)) device.runtime->sticky_error = "an illegal memory access";
    });
  }
};

bool is_closed(const HostRuntime& runtime, Buffer& buffer) {
  for (const auto& [memory, mapping] : runtime.mappings) {
    const auto* begin = static_cast<const std::byte*>(memory);
    if (buffer.data() >= begin && buffer.data() < begin + mapping.size_bytes) return mapping.closed;
  }
  return false;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__)
TEST_CASE("a read before the start of a buffer is named by a run on the CPU, one inside is not") {
  const auto ops = make_cpu_ops(1);
  CHECK(complaint(*ops, [](Buffer& key, Buffer& output) {
          output.as<unsigned char>()[0] = read(key, 0) == 0xFF && read(key, 1023) == 0xFF;
        }) == "");
  const std::string found = complaint(*ops, [](Buffer& key, Buffer&) { read(key, -8); });
  CHECK(contains(found, "reads before the start of 'key' (8 bytes before it)"));
  CHECK_FALSE(contains(found, "output"));
}

TEST_CASE("after the runs buffers are placed as usual, whether or not one of them failed") {
  const auto ops = make_cpu_ops(1);
  for (const std::ptrdiff_t at : {0, -8}) {
    complaint(*ops, [&](Buffer& key, Buffer&) { read(key, at); });
    const auto next = ops->allocate(1024, "next");
    read(*next, -8);
    CHECK_NOTHROW(ops->synchronize());
  }
}

TEST_CASE("what a run at an edge gives is handed back with the words for it") {
  const auto ops = make_cpu_ops(1);
  Turn turn([](Buffer&, Buffer& output) { std::memset(output.data(), 7, 64); });
  const std::vector<EdgeOutput> outputs = run_at_edges(turn, *ops, ignore);
  REQUIRE(outputs.size() == 1);
  CHECK(outputs[0].when == "with its buffers at the starts of their mappings");
  CHECK(outputs[0].output.output.bytes()[63] == std::byte{7});
}
#endif

TEST_CASE("on a device the buffer is named that a fault came with") {
  FaultingDevice one;
  one.fault = is_closed;
  const std::string found = one.complaint_of_run();
  CHECK(contains(found, "reads or writes past the end of 'key'"));
  CHECK(contains(found, "an illegal memory access"));
  CHECK_FALSE(contains(found, "'output'"));
}

TEST_CASE("on a device a fault that comes with every edge open is none of a single buffer") {
  FaultingDevice one;
  one.fault = [](const HostRuntime&, Buffer&) { return true; };
  CHECK(contains(one.complaint_of_run(), "reads or writes far outside of its buffers"));
}

TEST_CASE("on a device every buffer stands at both ends once, and is closed by itself") {
  HostDevice device;
  std::vector<std::size_t> closed;
  const std::string found = complaint(*device.ops, [&](Buffer&, Buffer&) {
    std::size_t count = 0;
    for (const auto& [memory, mapping] : device.runtime->mappings) count += mapping.closed;
    closed.push_back(count);
  });
  CHECK(found == "");
  CHECK(closed == std::vector<std::size_t>{0, 1, 1, 0, 1, 1});
  CHECK(device.runtime->mappings.empty());
}

TEST_CASE("a device that maps no memory, or has too little, leaves the runs out") {
  HostDevice without;
  without.runtime->granule = 0;
  Turn turn([](Buffer&, Buffer&) {});
  CHECK(run_at_edges(turn, *without.ops, ignore).empty());
  HostDevice small;
  small.runtime->memory_limit = 16384;
  std::vector<std::string> notices;
  CHECK(run_at_edges(turn, *small.ops, [&](const std::string& text) {
          notices.push_back(text);
        }).empty());
  REQUIRE(notices.size() == 2);
  CHECK(contains(notices[0], "key: 1024 bytes of device memory are not available"));
}

}  // namespace attnbench::edge_run_test
