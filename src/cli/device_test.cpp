#include "cli/device.h"

#include <doctest/doctest.h>

#include "core/error.h"

namespace attnbench {
namespace {

TEST_CASE("the CPU stands for an SM 9.0 device with 132 multiprocessors") {
  for (const char* device : {"auto", "cpu"}) {
    const DeviceChoice choice = choose_device(device, "");
    CHECK(choice.name == "cpu");
    CHECK(choice.facts.sm == 90);
    CHECK(choice.facts.num_sms == 132);
    CHECK(choice.refusals.empty());
  }
}

TEST_CASE("a compute capability may be written in every usual way") {
  for (const char* text : {"80", "8.0", "sm_80"}) CHECK(choose_device("cpu", text).facts.sm == 80);
  CHECK(choose_device("cpu", "sm_90a").facts.sm == 90);
  CHECK(choose_device("cpu", "12.0").facts.sm == 120);
  for (const char* text : {"9", "abc", "-80", "999", "0.1", "8.0.0"}) {
    CHECK_THROWS_AS(choose_device("cpu", text), Error);
  }
}

TEST_CASE("a CUDA device is refused with the reason, an unknown device is bad usage") {
  CHECK(choose_device("cuda", "").name == "cuda:0");
  CHECK(choose_device("cuda:3", "").name == "cuda:3");
  CHECK(choose_device("cuda", "").refusals.size() == 1);
  for (const char* text : {"gpu", "cuda:", "cuda:x", "CUDA", ""}) {
    CHECK_THROWS_AS(choose_device(text, ""), Error);
  }
}

}  // namespace
}  // namespace attnbench
