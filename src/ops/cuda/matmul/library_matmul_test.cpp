// Which products go to a library and what is kept of them, on a device of host memory.
#include "ops/cuda/matmul/library_matmul.h"

#include <doctest/doctest.h>

#include <cstring>

#include "ops/cuda/testing/column_major_testing.h"
#include "ops/cuda/testing/host_device_testing.h"
#include "ops/cuda/testing/operation_cases_testing.h"

namespace attnbench::cuda {
namespace {

/// C [2, m, 8] = A [2, m, 16] B [2, 16, 8] in f32.
struct Product {
  std::unique_ptr<Buffer> a, b, c;
  attn::MatmulParams params{};

  explicit Product(Ops& ops, std::int64_t m = 4) {
    const Tensor left = drawn(Dtype::kF32, {2, m, 16}, 1, false);
    const Tensor right = drawn(Dtype::kF32, {2, 16, 8}, 2, false);
    a = ops.allocate(left.size_bytes(), "a");
    b = ops.allocate(right.size_bytes(), "b");
    c = ops.allocate(static_cast<std::size_t>(2 * m * 8) * sizeof(float), "product");
    ops.upload(*a, left.bytes(), left.size_bytes());
    ops.upload(*b, right.bytes(), right.size_bytes());
    params = {attn::Element::kF32,
              attn::Element::kF32,
              a->data(),
              m * 16,
              16,
              b->data(),
              16 * 8,
              8,
              0,
              c->data(),
              m * 8,
              8,
              2,
              m,
              8,
              16,
              0};
  }
  std::string bytes() const { return {static_cast<const char*>(c->data()), c->size_bytes()}; }
};

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<std::string> names_of(const std::vector<KernelInfo>& kernels) {
  std::vector<std::string> names;
  for (const KernelInfo& kernel : kernels) names.push_back(kernel.name);
  return names;
}

constexpr const char* kName =
    "matmul f32 to f32 by cuBLASLt 1.2.3 (2 x [4, 16] x [16, 8]; algorithm 7)";

}  // namespace

TEST_CASE("a product is the library's where it is found, and the result says so") {
  FakeLibrary library;
  HostDevice device(library.opener());
  const std::unique_ptr<Ops> cpu = make_cpu_ops(1);
  const Product product(*device.ops);
  const Product expected(*cpu);
  device.ops->matmul(product.params);
  cpu->matmul(expected.params);
  CHECK(library.runs == 1);
  CHECK(device.runtime->launches.empty());
  for (std::size_t i = 0; i < product.c->size_bytes() / sizeof(float); ++i) {
    const double wanted = double{expected.c->as<float>()[i]};
    CHECK(double{product.c->as<float>()[i]} == doctest::Approx(wanted).epsilon(1e-4));
  }
  CHECK(names_of(device.ops->take_kernels()) == std::vector<std::string>{kName});
  CHECK(device.ops->take_kernels().empty());
}

TEST_CASE("a form of product is planned once, and nothing is planned after its preparation") {
  FakeLibrary library;
  library.workspace_bytes = 64;
  HostDevice device(library.opener());
  const Product small(*device.ops);
  const Product again(*device.ops);
  const Product large(*device.ops, 6);
  device.ops->prepare_matmul(small.params);
  device.ops->prepare_matmul(large.params);
  CHECK(library.runs == 0);
  CHECK(device.ops->take_kernels().empty());
  const std::size_t allocations = device.runtime->allocations.size();
  for (int i = 0; i < 3; ++i) {
    device.ops->matmul(small.params);
    device.ops->matmul(large.params);
    device.ops->matmul(again.params);
  }
  CHECK(library.runs == 9);
  CHECK(library.opened == 1);
  CHECK(library.planned.size() == 2);
  CHECK(device.runtime->allocations.size() == allocations);
  CHECK(device.ops->take_kernels().size() == 2);
}

TEST_CASE("the own kernel multiplies where the library is missing or has no algorithm") {
  FakeLibrary missing;
  missing.is_missing = true;
  FakeLibrary poor;
  poor.has_algorithms = false;
  for (FakeLibrary* library : {&missing, &poor}) {
    HostDevice device(library->opener());
    const Product product(*device.ops);
    device.ops->matmul(product.params);
    device.ops->matmul(product.params);
    CHECK(device.runtime->launches.size() == 2);
    CHECK(names_of(device.ops->take_kernels()) ==
          std::vector<std::string>{"matmul f32 to f32 x1 x1"});
    CHECK(library->opened == 1);  // and not looked for again
  }
  CHECK(poor.planned.size() == 1);
}

TEST_CASE("the own kernel multiplies what the library cannot, or must not because of the batch") {
  FakeLibrary library;
  HostDevice device(library.opener());
  Product product(*device.ops);
  product.params.batch_invariant = 1;
  device.ops->prepare_matmul(product.params);
  device.ops->matmul(product.params);
  CHECK(library.opened == 0);
  product.params.batch_invariant = 0;
  product.params.b_row_stride = 0;
  device.ops->matmul(product.params);
  CHECK(library.opened == 0);
  CHECK(device.runtime->launches.size() == 2);
}

TEST_CASE("without a way to open a library there is none") {
  HostDevice device;
  const Product product(*device.ops);
  device.ops->matmul(product.params);
  CHECK(device.runtime->launches.size() == 1);
}

TEST_CASE("the workspace is poison for every run and lies between guard zones") {
  FakeLibrary library;
  library.workspace_bytes = kMostLtWorkspaceBytes;
  int poisoned_runs = 0;
  std::size_t past = 0;
  library.on_run = [&](void*, void* workspace) {
    auto* bytes = static_cast<unsigned char*>(workspace);
    poisoned_runs += bytes[0] == 0xFF && bytes[kMostLtWorkspaceBytes - 1] == 0xFF ? 1 : 0;
    bytes[0] = bytes[kMostLtWorkspaceBytes - 1] = 0;
    if (past > 0) bytes[kMostLtWorkspaceBytes + past] = 0;
  };
  HostDevice device(library.opener());
  const Product product(*device.ops);
  for (int i = 0; i < 2; ++i) {
    device.ops->matmul(product.params);
    device.ops->synchronize();
  }
  CHECK(poisoned_runs == 2);
  past = 3;
  device.ops->matmul(product.params);
  const std::string message = message_of([&] { device.ops->synchronize(); });
  CHECK(contains(message, "cuBLASLt's workspace: 1 byte past its end"));
  CHECK(contains(message, kName));
}

TEST_CASE("an overrun and an error that shows late name the library's product") {
  FakeLibrary library;
  HostDevice device(library.opener());
  const Product product(*device.ops);
  library.on_run = [&](void* d, void*) { static_cast<char*>(d)[product.c->size_bytes()] = 0; };
  device.ops->matmul(product.params);
  const std::string overrun = message_of([&] { device.ops->synchronize(); });
  CHECK(contains(overrun, "product: 1 byte past its end"));
  CHECK(contains(overrun, kName));
  library.on_run = nullptr;
  device.ops->matmul(product.params);
  device.runtime->sticky_error = "cudaStreamSynchronize: an illegal memory access";
  CHECK(contains(message_of([&] { device.ops->wait(); }), kName));
}

TEST_CASE("what the library refuses is an error that names operation and shape") {
  FakeLibrary library;
  HostDevice device(library.opener());
  const Product product(*device.ops);
  library.plan_error = "cublasLtMatmulAlgoGetHeuristic: status 14";
  CHECK(message_of([&] { device.ops->prepare_matmul(product.params); }) ==
        "matmul f32 to f32 by cuBLASLt 1.2.3 of 2 x [4, 16] x [16, 8]: "
        "cublasLtMatmulAlgoGetHeuristic: status 14");
  library.plan_error.clear();
  library.run_error = "cublasLtMatmul: status 13";
  CHECK(message_of([&] { device.ops->matmul(product.params); }) ==
        std::string(kName) + ": cublasLtMatmul: status 13");
  CHECK(device.ops->take_kernels().empty());
}

}  // namespace attnbench::cuda
