#include "backends/ranks/communicator.h"

#include <doctest/doctest.h>

#include <vector>

#include "core/error.h"
#include "core/tensor.h"

namespace attnbench {
namespace {

/// One buffer for each of W ranks.
struct Buffers {
  std::vector<std::vector<int>> values;
  Buffers(int world_size, std::size_t count)
      : values(static_cast<std::size_t>(world_size), std::vector<int>(count, -1)) {}
  std::vector<const void*> send() const {
    std::vector<const void*> pointers;
    for (const auto& rank : values) pointers.push_back(rank.data());
    return pointers;
  }
  std::vector<void*> receive() {
    std::vector<void*> pointers;
    for (auto& rank : values) pointers.push_back(rank.data());
    return pointers;
  }
};

std::vector<const void*> senders(const std::vector<Tensor>& tensors) {
  std::vector<const void*> pointers;
  for (const Tensor& tensor : tensors) pointers.push_back(tensor.bytes());
  return pointers;
}
std::vector<void*> receivers(std::vector<Tensor>& tensors) {
  std::vector<void*> pointers;
  for (Tensor& tensor : tensors) pointers.push_back(tensor.bytes());
  return pointers;
}

std::unique_ptr<Communicator> simulated(int world_size) {
  static const std::unique_ptr<Ops> ops = make_cpu_ops(1);
  return make_ops_communicator(world_size, *ops);
}

}  // namespace

TEST_CASE("all_gather gives every rank the parts of all ranks in order") {
  Buffers in(3, 2), out(3, 6);
  in.values = {{1, 2}, {3, 4}, {5, 6}};
  simulated(3)->all_gather(in.send(), out.receive(), 2 * sizeof(int));
  for (const auto& rank : out.values) CHECK(rank == std::vector<int>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("all_to_all transposes ranks and parts") {
  Buffers in(3, 3), out(3, 3);
  in.values = {{0, 1, 2}, {10, 11, 12}, {20, 21, 22}};
  simulated(3)->all_to_all(in.send(), out.receive(), sizeof(int));
  CHECK(out.values == std::vector<std::vector<int>>{{0, 10, 20}, {1, 11, 21}, {2, 12, 22}});
}

TEST_CASE("reduce_scatter_sum gives each rank the sums of its own part") {
  // 1500 elements a part: more than are summed at a time.
  const std::int64_t count = 1500;
  std::vector<Tensor> in(4, Tensor(Dtype::kF32, {4, count}));
  std::vector<Tensor> out(4, Tensor(Dtype::kF32, {count}));
  for (int rank = 0; rank < 4; ++rank) {
    for (std::int64_t i = 0; i < 4 * count; ++i) {
      in[static_cast<std::size_t>(rank)].set(i, static_cast<float>(1000 * rank + i % 1000));
    }
  }
  simulated(4)->reduce_scatter_sum(senders(in), receivers(out), Dtype::kF32, count);
  int wrong = 0;
  for (int rank = 0; rank < 4; ++rank) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto element = static_cast<float>((rank * count + i) % 1000);
      wrong += out[static_cast<std::size_t>(rank)].at(i) == 6000 + 4 * element ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a sum of bfloat16 is taken in f32 and rounded once") {
  // 1 + 2^-8 + 2^-8: each half step is lost when every sum is rounded, together they are a step.
  std::vector<Tensor> in(3, Tensor(Dtype::kBF16, {1}));
  std::vector<Tensor> out(3, Tensor(Dtype::kBF16, {1}));
  in[0].set(0, 1.0f);
  in[1].set(0, 0x1p-8f);
  in[2].set(0, 0x1p-8f);
  simulated(3)->all_reduce_sum(senders(in), receivers(out), Dtype::kBF16, 1);
  for (const Tensor& rank : out) CHECK(rank.at(0) == 1.0f + 0x1p-7f);
}

TEST_CASE("more ranks than one kernel names are summed in the same order") {
  constexpr int kRanks = 3 * attn::kMostSummedRanks + 5;
  std::vector<Tensor> in(kRanks, Tensor(Dtype::kF32, {2}));
  std::vector<Tensor> out(kRanks, Tensor(Dtype::kF32, {2}));
  // Sums of thirds depend on their order.
  float sums[2] = {0, 0};
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int i = 0; i < 2; ++i) {
      const float term = static_cast<float>(rank * rank + i) / 3.0f;
      in[static_cast<std::size_t>(rank)].set(i, term);
      sums[i] = rank == 0 ? term : sums[i] + term;
    }
  }
  simulated(kRanks)->all_reduce_sum(senders(in), receivers(out), Dtype::kF32, 2);
  for (const Tensor& rank : out) {
    CHECK(rank.at(0) == sums[0]);
    CHECK(rank.at(1) == sums[1]);
  }
  std::vector<Tensor> half(kRanks, Tensor(Dtype::kF16, {2}));
  CHECK_THROWS_WITH_AS(
      simulated(kRanks)->all_reduce_sum(senders(half), receivers(half), Dtype::kF16, 2),
      "sum over ranks: expected at most 64 parts of float16, got 197", Error);
}

TEST_CASE("one rank alone gets back what it sent") {
  std::vector<Tensor> in(1, Tensor(Dtype::kF16, {2}));
  std::vector<Tensor> out(1, Tensor(Dtype::kF16, {2}));
  in[0].set(0, -0.0f);
  in[0].set(1, 2.5f);
  const auto ranks = simulated(1);
  ranks->reduce_scatter_sum(senders(in), receivers(out), Dtype::kF16, 2);
  CHECK(out[0].data<std::uint16_t>()[0] == 0x8000);
  CHECK(out[0].at(1) == 2.5f);
  ranks->all_to_all(senders(in), receivers(out), 4);
  CHECK(out[0].at(1) == 2.5f);
}

TEST_CASE("empty buffers are exchanged without being touched") {
  const std::vector<const void*> send(2, nullptr);
  const std::vector<void*> receive(2, nullptr);
  const auto ranks = simulated(2);
  CHECK_NOTHROW(ranks->all_gather(send, receive, 0));
  CHECK_NOTHROW(ranks->all_to_all(send, receive, 0));
  CHECK_NOTHROW(ranks->reduce_scatter_sum(send, receive, Dtype::kF32, 0));
  CHECK_NOTHROW(ranks->all_reduce_sum(send, receive, Dtype::kF32, 0));
}

TEST_CASE("wrong world sizes, buffer counts and element types are refused by name") {
  CHECK_THROWS_WITH_AS(simulated(0), "world size must be at least 1, got 0", Error);
  const auto ranks = simulated(2);
  const std::vector<const void*> send(2, nullptr);
  const std::vector<void*> receive(1, nullptr);
  CHECK_THROWS_WITH_AS(ranks->all_gather(send, receive, 0),
                       "all_gather: expected 2 send and receive buffers, got 2 and 1", Error);
  const std::vector<void*> both(2, nullptr);
  CHECK_THROWS_WITH_AS(ranks->all_reduce_sum(send, both, Dtype::kE4M3, 0),
                       "sum over ranks: expected float32, float16 or bfloat16, got fp8_e4m3",
                       Error);
}

}  // namespace attnbench
