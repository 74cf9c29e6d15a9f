#include "core/system/page_swap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "core/system/fenced_memory.h"

namespace attnbench {
namespace {

std::size_t page_size() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

bool PageSwap::is_possible(const void* target, std::size_t size_bytes) {
  return size_bytes > 0 && FencedMemory::holds(target, size_bytes);
}

PageSwap::PageSwap(void* target, std::size_t size_bytes) {
  auto* const begin = static_cast<std::byte*>(target);
  const std::size_t head = reinterpret_cast<std::uintptr_t>(begin) % page_size();
  const std::size_t used = head + size_bytes;
  bytes_ = (used + page_size() - 1) / page_size() * page_size();
  target_page_ = begin - head;
  // Why populated: pages that come at their first touch would come one by one.
  void* const room = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  room_page_ = static_cast<std::byte*>(room);
  room_ = room_page_ + head;
  std::memcpy(room_page_, target_page_, head);
  std::memcpy(room_page_ + used, target_page_ + used, bytes_ - used);
}

PageSwap::~PageSwap() {
  if (room_page_ != nullptr) munmap(room_page_, bytes_);
}

void PageSwap::show() {
  // One call of the system for all pages, behind which readers of them wait meanwhile.
  void* const moved =
      mremap(room_page_, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, target_page_);
  if (moved == MAP_FAILED) {  // too many mappings: the contents are what counts
    std::memcpy(target_page_, room_page_, bytes_);
    return;
  }
  room_page_ = nullptr;
  room_ = nullptr;
}

}  // namespace attnbench
