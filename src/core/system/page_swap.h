// Memory whose contents change at one instant: they are written elsewhere, and then the pages take
// the place of those that were there. Who watches the memory sees the old bytes or the new ones,
// and cannot begin with the first of them while the last are still being written.
//
// For the query of a timed sample on the CPU: a thread of a user's library that reads along while
// it is drawn would have done a part of the work before the clock starts.
#pragma once

#include <cstddef>

namespace attnbench {

/// New contents for a piece of memory. Between construction and show() nobody else may write to the
/// pages that it shares with its neighbours: those bytes are taken along as they were at first.
class PageSwap {
 public:
  /// `target` must lie in a FencedMemory, whole (is_possible()). Errors: std::bad_alloc.
  PageSwap(void* target, std::size_t size_bytes);
  ~PageSwap();
  PageSwap(const PageSwap&) = delete;
  PageSwap& operator=(const PageSwap&) = delete;

  /// Whether the memory is of a FencedMemory, whose pages nobody else has a share in.
  static bool is_possible(const void* target, std::size_t size_bytes);

  /// Where the new contents are written, `size_bytes`, aligned as the target is up to a page. Null
  /// once they are shown.
  void* room() const { return room_; }
  /// Makes them those of the target, at once; the room is gone afterwards. Once only. Does not
  /// touch the pages, so what a cache has of the new contents it still has. Where the system
  /// cannot move pages (too many mappings), the contents are copied instead, and not at once.
  void show();

 private:
  std::byte* target_page_ = nullptr;
  std::byte* room_page_ = nullptr;  // null: shown
  std::size_t bytes_ = 0;           // of whole pages
  std::byte* room_ = nullptr;
};

}  // namespace attnbench
