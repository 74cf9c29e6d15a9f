// Large pieces of zeroed memory, kept for the next one who asks when they are given back.
//
// Why: the tensors of a case are gone when the next case makes its own of the same sizes. The first
// touch of memory that comes fresh from the system costs more than what is computed of it: the
// system has to clear the page, and on a virtual machine the host may have to find it first. That
// was half of the time of the suites at real sizes on a CPU.
#pragma once

#include <cstddef>

namespace attnbench {

/// At least this much is worth a mapping of its own; smaller pieces are for the heap.
inline constexpr std::size_t kLargePiece = std::size_t{1} << 20;

/// Of a piece that is taken.
enum class PieceContents { kZeros, kAny };

/// Memory that is given back in pieces of any size from kLargePiece on.
///
/// Safe to use from several threads. A thread that finds it in use by another one goes to the
/// system instead of waiting, so a child that was forked in the middle of a call is not stuck.
class PagePool {
 public:
  /// Keeps at most `limit_bytes`: the longest-kept pieces go back to the system first.
  explicit PagePool(std::size_t limit_bytes);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool();

  /// Zeros on a page boundary: a piece that was given back with the same number of pages, cleared
  /// on several threads where `contents` are to be zeros, or else addresses from the system, which
  /// gives a page when it is first touched. Errors: std::bad_alloc.
  std::byte* take(std::size_t size_bytes, PieceContents contents = PieceContents::kZeros);
  /// `piece` came from take() with this size. What was hardly touched goes back to the system at
  /// once: to clear it would take memory that nobody has used.
  void give_back(std::byte* piece, std::size_t size_bytes) noexcept;

  std::size_t kept_bytes() const;

 private:
  struct State;
  State* state_;
};

/// That of the process, which is never destroyed: tensors with static lifetime may outlive
/// anything.
PagePool& process_page_pool();

}  // namespace attnbench
