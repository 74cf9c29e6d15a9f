#include "cli/cases/device.h"

#include <doctest/doctest.h>

#include "core/error.h"

namespace attnbench {
namespace {

DeviceList no_devices() { return {{}, "no CUDA device: no driver"}; }

DeviceList one_device(int sm) {
  DeviceInfo info;
  info.name = "NVIDIA H200";
  info.sm = sm;
  info.num_sms = 78;
  return {{info}, {}};
}

TEST_CASE("the CPU stands for an SM 9.0 device with 132 multiprocessors") {
  for (const char* device : {"auto", "cpu"}) {
    const DeviceChoice choice = choose_device(device, "", no_devices);
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

TEST_CASE("the CPU stands for as many multiprocessors as are assumed, a GPU for its own") {
  CHECK(choose_device("cpu", "80", 20).facts.num_sms == 20);
  CHECK(choose_device("cpu", "80").facts.num_sms == kAssumedNumSms);
  const auto list = [] { return one_device(90); };
  CHECK(choose_device("auto", "", list, 20).facts.num_sms == 78);
  CHECK(target_of(choose_device("cpu", "80", 20)).num_sms == 20);
  CHECK(target_of(choose_device("auto", "", list)).num_sms == 78);
}

TEST_CASE("a CUDA device that is not there is refused with the reason") {
  const DeviceChoice first = choose_device("cuda", "", no_devices);
  CHECK(first.name == "cuda:0");
  CHECK(first.refusals == std::vector<std::string>{"no CUDA device: no driver"});
  const auto list = [] { return one_device(90); };
  const DeviceChoice fourth = choose_device("cuda:3", "", list);
  CHECK(fourth.name == "cuda:3");
  CHECK(fourth.refusals == std::vector<std::string>{"no CUDA device 3: there are 1"});
}

TEST_CASE("auto and cuda take the GPU, whose facts hold whatever is assumed") {
  const auto list = [] { return one_device(100); };
  for (const char* device : {"auto", "cuda", "cuda:0"}) {
    const DeviceChoice choice = choose_device(device, "80", list);
    CHECK(choice.name == "cuda:0");
    CHECK(choice.is_cuda());
    CHECK(choice.facts.sm == 100);
    CHECK(choice.facts.num_sms == 78);
  }
  CHECK_FALSE(choose_device("cpu", "", list).is_cuda());
}

TEST_CASE("a range of devices is one for each rank, and everything else runs on the first") {
  const auto several = [](std::vector<int> sms) {
    return [sms] {
      DeviceList list;
      for (const int sm : sms) {
        list.devices.push_back(one_device(sm).devices.front());
        list.devices.back().index = static_cast<int>(list.devices.size()) - 1;
      }
      return list;
    };
  };
  const DeviceChoice choice = choose_device("cuda:1-3", "", several({90, 90, 90, 90}));
  CHECK(choice.name == "cuda:1-3");
  CHECK(choice.is_range);
  REQUIRE(choice.of_ranks.size() == 3);
  CHECK(choice.info->index == 1);
  CHECK(choice.facts.num_sms == 78);
  const DeviceChoice third = device_of_thread(choice, 2);
  CHECK(third.name == "cuda:3");
  CHECK(third.info->index == 3);
  CHECK_FALSE(third.is_range);

  CHECK_FALSE(choose_device("cuda:1-1", "", several({90, 90})).is_range);
  CHECK(choose_device("cuda:0-2", "", several({90, 90})).refusals ==
        std::vector<std::string>{"no CUDA device 2: there are 2"});
  CHECK(choose_device("cuda:0-1", "", no_devices).refusals ==
        std::vector<std::string>{"no CUDA device: no driver"});
  CHECK(choose_device("cuda:0-1", "", several({90, 80})).refusals ==
        std::vector<std::string>{"--device cuda:0-1: ranks need devices of one kind, NVIDIA H200 "
                                 "is cuda:0 and NVIDIA H200 is cuda:1"});
  for (const char* wrong : {"cuda:2-1", "cuda:0-", "cuda:-1", "cpu:0-1"}) {
    CHECK_THROWS_AS(choose_device(wrong, "", several({90, 90, 90})), Error);
  }
}

TEST_CASE("a rank takes the GPU of its number, or the only one that it sees") {
  const auto several = [](std::size_t count) {
    return [count] { return DeviceList{std::vector<DeviceInfo>(count), {}}; };
  };
  CHECK(device_of_rank(0, several(4)) == "cuda:0");
  CHECK(device_of_rank(3, several(4)) == "cuda:3");
  CHECK(device_of_rank(0, several(1)) == "cuda:0");
  CHECK(device_of_rank(3, several(1)) == "cuda:0");
  // Too few for the ranks of the machine: refused by number.
  CHECK(device_of_rank(2, several(2)) == "cuda:2");
}

TEST_CASE("a GPU before compute capability 8.0 is refused with both capabilities") {
  const DeviceChoice choice = choose_device("cuda", "", [] { return one_device(75); });
  REQUIRE_FALSE(choice.refusals.empty());
  CHECK(choice.refusals[0] ==
        "CUDA kernels need compute capability 8.0 or newer, NVIDIA H200 has 7.5");
}

TEST_CASE("an unknown device is bad usage") {
  for (const char* text : {"gpu", "cuda:", "cuda:x", "CUDA", ""}) {
    CHECK_THROWS_AS(choose_device(text, "", no_devices), Error);
  }
}

}  // namespace
}  // namespace attnbench
