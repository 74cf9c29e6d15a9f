// For vectors that may be large: what the heap would fetch from the system for each of them comes
// from the pages that the process keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "core/system/page_pool.h"
#include "core/tensor.h"

namespace attnbench {

/// Allocates on 64-byte boundaries, large blocks from process_page_pool().
template <typename T>
struct PoolAllocator {
  using value_type = T;
  /// Why not kLargePiece: smaller blocks are kept by the heap when they are freed, which gives them
  /// to any other size; this is where glibc's M_MMAP_THRESHOLD ends.
  static constexpr std::size_t kBeyondHeap = std::size_t{32} << 20;

  PoolAllocator() = default;
  template <typename U>
  PoolAllocator(const PoolAllocator<U>&) {}
  T* allocate(std::size_t count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    const std::size_t bytes = count * sizeof(T);
    if (bytes < kBeyondHeap) return AlignedAllocator<T>().allocate(count);
    return reinterpret_cast<T*>(process_page_pool().take(bytes, PieceContents::kAny));
  }
  void deallocate(T* pointer, std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes < kBeyondHeap) {
      AlignedAllocator<T>().deallocate(pointer, count);
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
