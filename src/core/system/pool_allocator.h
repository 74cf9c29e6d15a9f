// For vectors that may be large: what the heap would fetch from the system for each of them comes
// from the pages that the process keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "core/system/page_pool.h"

namespace attnbench {

/// Allocates on 64-byte boundaries, large blocks from process_page_pool().
template <typename T>
struct PoolAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};
  /// Why not kLargePiece: smaller blocks are kept by the heap when they are freed, which gives them
  /// to any other size; this is where glibc's M_MMAP_THRESHOLD ends.
  static constexpr std::size_t kBeyondHeap = std::size_t{32} << 20;

  PoolAllocator() = default;
  template <typename U>
  PoolAllocator(const PoolAllocator<U>&) {}
  T* allocate(std::size_t count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    const std::size_t bytes = count * sizeof(T);
    if (bytes < kBeyondHeap) return static_cast<T*>(::operator new(bytes, kAlignment));
    return reinterpret_cast<T*>(process_page_pool().take(bytes, PieceContents::kAny));
  }
  void deallocate(T* pointer, std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes < kBeyondHeap) {
      ::operator delete(pointer, kAlignment);
    } else {
      process_page_pool().give_back(reinterpret_cast<std::byte*>(pointer), bytes);
    }
  }
  template <typename U>
  bool operator==(const PoolAllocator<U>&) const {
    return true;
  }
};

}  // namespace attnbench
