// What CudaOps does around its kernels, on a device of host memory.
#include "ops/cuda/cuda_ops.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>

#include "core/error.h"
#include "core/problem/problem.h"
#include "kernels/params_measure.h"
#include "ops/cuda/move/tma_copy_testing.h"
#include "ops/cuda/planted_fault.h"
#include "ops/cuda/recording_ops.h"
#include "ops/cuda/testing/host_device_testing.h"

namespace attnbench {
namespace {

attn::MergeParams merge_params(std::int64_t num_tokens = 4) {
  attn::MergeParams params{};
  params.element = params.output_element = attn::Element::kBF16;
  params.num_tokens = params.num_merged = num_tokens;
  params.num_heads = 2;
  params.head_size = 128;
  params.prefix_head_stride = 128;
  return params;
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kCuda);
    return error.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a kernel is compiled and loaded once and listed once with what the compiler said") {
  HostDevice device;
  device.ops->merge(merge_params());
  device.ops->merge(merge_params());
  CHECK(device.compilations == 1);
  CHECK(device.runtime->loaded.size() == 1);
  CHECK(device.runtime->launches.size() == 2);
  const std::vector<KernelInfo> kernels = device.ops->take_kernels();
  REQUIRE(kernels.size() == 1);
  CHECK(kernels[0].name == "merge bf16 to bf16 x8");
  CHECK(kernels[0].registers == 40);
  CHECK(kernels[0].spill_bytes == 8);
  CHECK(kernels[0].shared_bytes == 1024);
  CHECK(kernels[0].cubin_hash.size() == 64);
  CHECK(device.ops->take_kernels().empty());
}

TEST_CASE("an operation without work launches nothing") {
  HostDevice device;
  device.ops->merge(merge_params(0));
  CHECK(device.runtime->launches.empty());
  CHECK(device.compilations == 0);
}

TEST_CASE("an overrun names the buffer and the kernels since the last check") {
  HostDevice device;
  const auto first = device.ops->allocate(100, "output");
  const auto second = device.ops->allocate(100, "lse");
  device.ops->synchronize();
  device.runtime->on_launch = [&](const void* const*) { second->as<char>()[101] = 0; };
  device.ops->merge(merge_params());
  const std::string message = message_of([&] { device.ops->synchronize(); });
  CHECK(contains(message, "lse: 1 byte past its end"));
  CHECK(contains(message, "merge bf16 to bf16 x8"));
  CHECK_FALSE(contains(message, "output:"));
  CHECK_NOTHROW(device.ops->synchronize());
}

TEST_CASE(
    "wide zones are looked through by a kernel of no operation, and by the host where it says") {
  HostDevice device(nullptr, DeviceBuffer::kWideZone);
  const auto output = device.ops->allocate(1000, "output");
  const auto lse = device.ops->allocate(1000, "lse");
  bool finds_output = false;
  device.runtime->on_launch = [&](const void* const* arguments) {
    const auto& params = *static_cast<const attn::ZoneScanParams*>(arguments[0]);
    CHECK(params.word == kGuardWord);
    for (int i = 0; i < 4; ++i) {
      CHECK(params.broken[i] == 0);
      const unsigned char* end = params.zones[i].begin + params.zones[i].num_bytes;
      CHECK(params.zones[i].num_bytes == DeviceBuffer::kWideZone);
      if (finds_output &&
          (params.zones[i].begin == output->as<unsigned char>() + 1000 || end == output->data())) {
        params.broken[i] = 1;
      }
    }
  };
  output->as<char>()[1000 + 65536] = 1;
  lse->as<char>()[1000] = 1;  // the kernel says nothing of it
  CHECK_NOTHROW(device.ops->synchronize());
  finds_output = true;
  const std::string message = message_of([&] { device.ops->synchronize(); });
  CHECK(contains(message, "output: 1 byte past its end was overwritten, the first at byte 66536"));
  CHECK_FALSE(contains(message, "lse"));
  CHECK_NOTHROW(device.ops->synchronize());
  CHECK(device.ops->take_kernels().empty());
}

TEST_CASE("a buffer that is gone is not looked at") {
  HostDevice device;
  auto buffer = device.ops->allocate(100, "output");
  buffer->as<char>()[100] = 0;
  buffer.reset();
  CHECK_NOTHROW(device.ops->synchronize());
}

TEST_CASE("a failed launch names kernel, choices and shape") {
  HostDevice device;
  device.runtime->launch_error = "cudaLaunchKernelExC: invalid argument";
  const std::string message = message_of([&] { device.ops->merge(merge_params()); });
  for (const char* part : {"kernel 'merge bf16 to bf16 x8'", "attn::merge",
                           "kElement = attn::Element::kBF16", "invalid argument", "256 threads"}) {
    CHECK(contains(message, part));
  }
}

TEST_CASE("an error that shows late names the kernels that it may be of") {
  HostDevice device;
  device.ops->merge(merge_params());
  device.runtime->sticky_error = "cudaStreamSynchronize: an illegal memory access";
  const std::string message = message_of([&] { device.ops->wait(); });
  CHECK(contains(message, "illegal memory access"));
  CHECK(contains(message, "merge bf16 to bf16 x8"));
}

TEST_CASE("a listener hears of kernels before they are waited for, and of the same ones once") {
  HostDevice device;
  std::vector<std::string> heard;
  device.ops->on_wait([&](const std::string& kernels) { heard.push_back(kernels); });
  device.ops->merge(merge_params());
  CHECK(heard.empty());
  device.runtime->sticky_error = "cudaStreamSynchronize: the launch timed out";
  CHECK_THROWS(device.ops->wait());
  REQUIRE(heard.size() == 1);
  CHECK(contains(heard[0], "kernel 'merge bf16 to bf16 x8' (attn::merge {"));
  device.runtime->sticky_error.clear();
  device.ops->merge(merge_params());
  device.ops->wait();
  device.ops->wait();
  CHECK(heard.size() == 2);
  device.ops->synchronize();
  device.ops->synchronize();
  CHECK(heard.size() == 2);
  device.ops->merge(merge_params());
  device.ops->synchronize();
  CHECK(heard.size() == 3);
}

TEST_CASE("others' work on the stream is announced at once and named with the kernels") {
  HostDevice device;
  std::vector<std::string> heard;
  device.ops->on_wait([&](const std::string& work) { heard.push_back(work); });
  const auto buffer = device.ops->allocate(64, "output");
  device.ops->merge(merge_params());
  for (int i = 0; i < 3; ++i) {
    CHECK(device.ops->stream_for("run() of MINE") == device.ops->stream().handle());
  }
  REQUIRE(heard.size() == 1);
  CHECK(contains(heard[0], "kernel 'merge bf16 to bf16 x8'"));
  CHECK(contains(heard[0], ", run() of MINE"));
  buffer->as<char>()[64] = 0;
  const std::string message = message_of([&] { device.ops->synchronize(); });
  CHECK(contains(message, "output: 1 byte past its end"));
  CHECK(contains(message, ", run() of MINE"));
  device.ops->stream_for("run() of MINE");
  CHECK(heard.size() == 2);
}

TEST_CASE("a planted overrun goes past the end of its buffer and is named") {
  HostDevice device;
  const auto buffer = device.ops->allocate(64, "planted buffer");
  device.runtime->on_launch = [](const void* const* arguments) {
    *static_cast<const attn::PlantedFaultParams*>(arguments[0])->target = 1;
  };
  cuda::launch_fault(device.ops->launcher(), cuda::Fault::kOverrun, *buffer);
  const std::string message = message_of([&] { device.ops->synchronize(); });
  CHECK(contains(message,
                 "planted buffer: 4 bytes past its end were overwritten, the first at "
                 "byte 64 of a buffer of 64 bytes"));
  CHECK(contains(message, "kernel 'planted overrun' (attn::planted_write {kValue = 1u})"));
}

TEST_CASE("what no kernel does is refused by name and is no crash") {
  HostDevice device;
  attn::AttendParams params{};
  params.query_element = attn::Element::kI8;  // without query scales
  params.head_size = params.v_head_size = 64;
  params.num_heads = params.num_kv_heads = 1;
  try {
    device.ops->attend(params);
    FAIL("was accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUnsupported);
    CHECK(std::string(error.what()) == "attend of i8 queries and f32 keys has no CUDA kernel yet");
  }
}

TEST_CASE("a problem is refused exactly where choosing its kernel fails") {
  for (const int sm : {80, 89, 90, 100}) {
    const cuda::Target target = cuda::target_of_sm(sm);
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
      for (const int size : {8, 72, 256, 512, 576, 1024, 2048}) {
        CAPTURE(sm);
        CAPTURE(size);
        Problem problem;
        problem.attention.dtype = dtype;
        problem.attention.head_size = problem.attention.v_head_size = size;
        attn::AttendParams params{};
        params.query_element = params.output_element = params.kv.element =
            static_cast<attn::Element>(dtype);
        params.head_size = params.v_head_size = size;
        params.num_requests = params.num_heads = params.num_kv_heads = 1;
        params.max_query_len = 100;
        params.score.softmax_scale = 1.0f;
        // Beside one another, as keys and values are.
        std::array<float, 8> memory{};
        params.kv.key = memory.data();
        params.kv.value = memory.data() + 4;
        std::vector<KernelSpec> specs;
        const std::unique_ptr<Ops> ops = make_recording_ops(target, specs);
        bool refused = false;
        try {
          ops->attend(params);
        } catch (const Error& error) {
          refused = error.kind() == ErrorKind::kUnsupported;
        }
        CHECK(cuda_lacks(problem, target).empty() == !refused);
      }
    }
  }
}

namespace {

int num_encoded = 0;

/// play_tensor_map_encode, counted.
int count_encode(void* map, int a, std::uint32_t rank, void* address, const std::uint64_t* extents,
                 const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* steps,
                 int b, int c, int d, int e) {
  ++num_encoded;
  return play_tensor_map_encode(map, a, rank, address, extents, strides, box, steps, b, c, d, e);
}

}  // namespace

TEST_CASE("a tensor map reaches the kernel in its encoded form, which is made once") {
  HostDevice device;
  device.runtime->driver_functions["cuTensorMapEncodeTiled"] =
      reinterpret_cast<void*>(&count_encode);
  const auto from = device.ops->allocate(2048, "from");
  const auto to = device.ops->allocate(2048, "to");
  cuda::TmaCopy copy = cuda::tma_copies().front();
  copy.from = from->data();
  copy.to = to->data();
  const void* first_words[2] = {};
  int row_boxes = 0;
  device.runtime->on_launch = [&](const void* const* arguments) {
    for (int i = 0; i < 2; ++i) {
      CHECK(reinterpret_cast<std::uintptr_t>(arguments[i]) % 64 == 0);
      std::memcpy(&first_words[i], arguments[i], sizeof(void*));
    }
    row_boxes = *static_cast<const int*>(arguments[2]);
  };
  num_encoded = 0;
  cuda::launch_tma_copy(device.ops->launcher(), copy);
  CHECK(first_words[0] == from->data());
  CHECK(first_words[1] == to->data());
  CHECK(row_boxes == 1);
  cuda::launch_tma_copy(device.ops->launcher(), copy);
  CHECK(num_encoded == 2);
  REQUIRE(device.runtime->launches.size() == 2);
  CHECK(device.runtime->launches[0].shape.cluster_x == 2);
}

TEST_CASE("without the driver's function a kernel with tensor maps is an error that says so") {
  HostDevice device;
  const auto buffer = device.ops->allocate(2048, "buffer");
  cuda::TmaCopy copy = cuda::tma_copies().front();
  copy.from = copy.to = buffer->data();
  const std::string message =
      message_of([&] { cuda::launch_tma_copy(device.ops->launcher(), copy); });
  CHECK(contains(message, "kernel 'tma_copy 2-D boxes of 64 x 16'"));
  CHECK(contains(message, "cuTensorMapEncodeTiled is not in the driver"));
  CHECK(contains(message, "clusters of 2 x 1 x 1"));
}

TEST_CASE("clusters and tensor maps that no device takes are refused without one") {
  std::vector<KernelSpec> specs;
  const auto error_of = [&](int sm, const cuda::TmaCopy& copy, LaunchShape shape) {
    try {
      cuda::check_launch(cuda::target_of_sm(sm), cuda::tma_copy_spec(copy), shape,
                         {cuda::argument_of(cuda::tma_copy_map(copy, nullptr))});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kInternal);
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  cuda::TmaCopy copy = cuda::tma_copies().front();
  const LaunchShape shape = cuda::tma_copy_shape(copy);
  CHECK(error_of(90, copy, shape) == "nothing was thrown");
  CHECK(contains(error_of(80, copy, shape), "need compute capability 9.0"));
  LaunchShape odd = shape;
  odd.grid_x = 3;
  CHECK(contains(error_of(90, copy, odd), "do not divide a grid of 3 x 1 x 1"));
  copy.row_stride = 65;
  CHECK(
      error_of(90, copy, shape) ==
      "kernel 'tma_copy 2-D boxes of 64 x 16': tensor map: dimension 1 has a stride of 130 bytes, "
      "a multiple of 16 below 2^40 is needed");
}

TEST_CASE("new memory is poison, and bytes go there and back") {
  HostDevice device;
  const auto buffer = device.ops->allocate(8, "x");
  std::uint64_t value = 0;
  device.ops->download(&value, *buffer, 8);
  CHECK(value == ~std::uint64_t{0});
  const std::uint64_t sent = 42;
  device.ops->upload(*buffer, &sent, 8);
  device.ops->download(&value, *buffer, 8);
  CHECK(value == 42);
  device.ops->poison(*buffer);
  device.ops->download(&value, *buffer, 8);
  CHECK(value == ~std::uint64_t{0});
  CHECK_THROWS_AS(device.ops->upload(*buffer, &sent, 9), Error);
}

}  // namespace attnbench
