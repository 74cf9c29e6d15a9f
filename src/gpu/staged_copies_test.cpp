#include "gpu/staged_copies.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

namespace attnbench {
namespace {

/// A device that does nothing before somebody waits for it, and then no more than it has to.
class LazyQueue final : public CopyQueue {
 public:
  void* allocate_pinned(std::size_t size_bytes) override {
    ++num_allocated;
    return std::malloc(size_bytes);
  }
  void release_pinned(void* memory) override {
    --num_allocated;
    std::free(memory);
  }
  void copy(void* destination, const void* source, std::size_t size_bytes) override {
    queued_.push_back({destination, source, size_bytes, -1});
  }
  void mark(int half) override { queued_.push_back({nullptr, nullptr, 0, half}); }
  void wait(int half) override {
    bool is_there = false;
    for (const Item& item : queued_) is_there = is_there || item.half == half;
    while (is_there) is_there = run_first() != half;
  }
  void drain() {
    while (!queued_.empty()) run_first();
  }

  int num_allocated = 0;

 private:
  struct Item {
    void* destination;
    const void* source;
    std::size_t size_bytes;
    int half;  // of a mark
  };
  int run_first() {
    const Item item = queued_.front();
    queued_.pop_front();
    if (item.half < 0) std::memcpy(item.destination, item.source, item.size_bytes);
    return item.half;
  }

  std::deque<Item> queued_;
};

std::vector<unsigned char> numbered(std::size_t size) {
  std::vector<unsigned char> bytes(size);
  unsigned value = 7;
  for (unsigned char& byte : bytes)
    byte = static_cast<unsigned char>((value = value * 75 + 74) >> 3);
  return bytes;
}

const std::size_t kSizes[] = {0,
                              1,
                              StagedCopies::kWorthwhile + 3,
                              StagedCopies::kHalf,
                              2 * StagedCopies::kHalf + 1,
                              5 * StagedCopies::kHalf - 9};

}  // namespace

TEST_CASE("staged copies bring every byte to the host, however late the device is") {
  LazyQueue queue;
  StagedCopies copies;
  for (const std::size_t size : kSizes) {
    const std::vector<unsigned char> source = numbered(size);
    std::vector<unsigned char> destination(size + 1, 0xEE);
    copies.to_host(queue, destination.data(), source.data(), size);
    CHECK(std::equal(source.begin(), source.end(), destination.begin()));
    CHECK(destination.back() == 0xEE);
  }
  CHECK(queue.num_allocated == 1);
  copies.release(queue);
  copies.release(queue);
  CHECK(queue.num_allocated == 0);
}

TEST_CASE("staged copies to the device do not need their source any more when they return") {
  LazyQueue queue;
  StagedCopies copies;
  for (const std::size_t size : kSizes) {
    const std::vector<unsigned char> expected = numbered(size);
    std::vector<unsigned char> source = expected;
    std::vector<unsigned char> destination(size + 1, 0xEE);
    copies.to_device(queue, destination.data(), source.data(), size);
    std::fill(source.begin(), source.end(), static_cast<unsigned char>(0));
    queue.drain();
    CHECK(std::equal(expected.begin(), expected.end(), destination.begin()));
    CHECK(destination.back() == 0xEE);
  }
  copies.release(queue);
}

}  // namespace attnbench
