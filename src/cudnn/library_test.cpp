#include "cudnn/library.h"

#include <doctest/doctest.h>

#include <regex>

#include "core/error.h"
#include "gpu/runtime.h"

namespace attnbench {
namespace {

CudnnGraph small_graph() {
  CudnnGraph graph;
  graph.query_shape = {{1, 2, 16, 64}, {2048, 64, 128, 1}, false};
  graph.key_shape = graph.value_shape = graph.output_shape = graph.query_shape;
  graph.stats_shape = {{1, 2, 16, 1}, {32, 16, 1, 1}, false};
  return graph;
}

TEST_CASE("cuDNN is found with its version, or what is missing is said") {
  const CudnnChoice& choice = find_cudnn();
  CHECK((choice.library == nullptr) == !choice.missing.empty());
  CHECK(&find_cudnn() == &choice);
  if (choice.library == nullptr) return;
  CHECK(std::regex_match(choice.library->version(),
                         std::regex("\\d+\\.\\d+\\.\\d+, frontend \\d+\\.\\d+\\.\\d+")));
  CHECK(choice.library->path().find("libcudnn.so.9") != std::string::npos);
}

TEST_CASE("without a device cuDNN makes no plan and says why") {
  const CudnnChoice& choice = find_cudnn();
  if (choice.library == nullptr || !list_devices().devices.empty()) return;
  CHECK_THROWS_AS(choice.library->plan(small_graph(), nullptr), Error);
}

}  // namespace
}  // namespace attnbench
