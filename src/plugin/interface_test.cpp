// The layout of the C interface, which libraries that were built long ago rely on.
#include <doctest/doctest.h>

#include <cstddef>

#include "plugin/attnbench_backend.h"
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#define HAS_DLPACK 1
#else
#define HAS_DLPACK 0
#endif

TEST_CASE("fields stay where version 1 of the plugin interface has them") {
  CHECK(ATTNBENCH_ABI_VERSION == 1);
  CHECK(offsetof(AttnbenchBackend, struct_size) == 0);
  CHECK(offsetof(AttnbenchBackend, abi_version) == 4);
  CHECK(offsetof(AttnbenchBackend, name) == 8);
  CHECK(offsetof(AttnbenchBackend, devices) == 40);
  CHECK(offsetof(AttnbenchBackend, features) == 64);
  CHECK(offsetof(AttnbenchBackend, supports) == 72);
  CHECK(offsetof(AttnbenchBackend, destroy) == 96);
  CHECK(offsetof(AttnbenchProblem, scale) == 48);
  CHECK(offsetof(AttnbenchProblem, features) == 88);
  CHECK(offsetof(AttnbenchProblem, query_lens) == 136);
  CHECK(offsetof(AttnbenchProblem, json) == 208);
  CHECK(offsetof(AttnbenchTensors, query) == 8);
  CHECK(offsetof(AttnbenchTensors, mm_prefix_ranges) == 128);
  CHECK(offsetof(AttnbenchHost, stream) == 16);
  CHECK(offsetof(AttnbenchHost, allocate) == 24);
}

TEST_CASE("a tensor lies in memory as a DLTensor of DLPack") {
  CHECK(offsetof(AttnbenchTensor, data) == 0);
  CHECK(offsetof(AttnbenchTensor, device) == 8);
  CHECK(offsetof(AttnbenchTensor, ndim) == 16);
  CHECK(offsetof(AttnbenchTensor, dtype) == 20);
  CHECK(offsetof(AttnbenchTensor, shape) == 24);
  CHECK(offsetof(AttnbenchTensor, strides) == 32);
  CHECK(offsetof(AttnbenchTensor, byte_offset) == 40);
  CHECK(sizeof(AttnbenchTensor) == 48);
#if HAS_DLPACK
  CHECK(offsetof(DLTensor, device) == offsetof(AttnbenchTensor, device));
  CHECK(offsetof(DLTensor, ndim) == offsetof(AttnbenchTensor, ndim));
  CHECK(offsetof(DLTensor, dtype) == offsetof(AttnbenchTensor, dtype));
  CHECK(offsetof(DLTensor, shape) == offsetof(AttnbenchTensor, shape));
  CHECK(offsetof(DLTensor, strides) == offsetof(AttnbenchTensor, strides));
  CHECK(offsetof(DLTensor, byte_offset) == offsetof(AttnbenchTensor, byte_offset));
  CHECK(sizeof(DLTensor) == sizeof(AttnbenchTensor));
#endif
}
