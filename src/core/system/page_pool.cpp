// A list of pieces, the longest-kept one first. There are some tens of them at most, so looking
// through all is nothing beside clearing one.
#include "core/system/page_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <vector>

#include "core/system/parallel.h"

namespace attnbench {
namespace {

std::size_t pool_page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t whole_pages(std::size_t size_bytes) {
  const std::size_t page = pool_page_bytes();
  if (size_bytes > SIZE_MAX - page) throw std::bad_alloc();
  return (size_bytes + page - 1) / page * page;
}

std::byte* map_piece(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  // Why: the first touch of a page costs as much as copying it; large pages have 512 times fewer
  // of them. Where the system has none, nothing is lost.
  madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

/// Whether nearly all of its pages are in memory.
bool is_touched(std::byte* piece, std::size_t bytes) {
  std::vector<unsigned char> pages(bytes / pool_page_bytes());
  if (mincore(piece, bytes, pages.data()) != 0) return false;
  const auto present =
      std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
  return static_cast<std::size_t>(present) >= pages.size() - pages.size() / 8;
}

void clear_piece(std::byte* piece, std::size_t bytes) {
  constexpr std::int64_t kChunk = 16 << 20;
  for_each_chunk(static_cast<std::int64_t>(bytes), kChunk,
                 [&](std::int64_t begin, std::int64_t end) {
                   std::memset(piece + begin, 0, static_cast<std::size_t>(end - begin));
                 });
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/// Nothing is kept: a sanitizer is to see who touches what was given back.
std::size_t limit_of_process() { return 0; }
#else
/// An eighth of the machine's memory, which a program of the CPU hardly ever misses, and at most
/// 2 GiB, as a container may be allowed less than the machine has.
std::size_t limit_of_process() {
  constexpr std::size_t kMost = std::size_t{2} << 30;
  const auto pages = static_cast<std::size_t>(std::max(sysconf(_SC_PHYS_PAGES), 0L));
  return std::min(kMost, pages / 8 * pool_page_bytes());
}
#endif

}  // namespace

struct PagePool::State {
  struct Piece {
    std::byte* begin;
    std::size_t bytes;
  };
  explicit State(std::size_t limit) : limit_bytes(limit) {}

  const std::size_t limit_bytes;
  std::size_t kept_bytes = 0;
  std::deque<Piece> pieces;
  pid_t owner = getpid();
  std::mutex mutex;

  void drop_first() {
    munmap(pieces.front().begin, pieces.front().bytes);
    kept_bytes -= pieces.front().bytes;
    pieces.pop_front();
  }
  void drop_all() {
    while (!pieces.empty()) drop_first();
  }
  /// Why: a child shares the pages of its parent, and writing to them would copy each.
  void forget_those_of_the_parent() {
    if (owner == getpid()) return;
    owner = getpid();
    drop_all();
  }
};

PagePool::PagePool(std::size_t limit_bytes) : state_(new State(limit_bytes)) {}

PagePool::~PagePool() {
  state_->drop_all();
  delete state_;
}

std::byte* PagePool::take(std::size_t size_bytes, PieceContents contents) {
  const std::size_t bytes = whole_pages(size_bytes);
  std::byte* found = nullptr;
  if (const std::unique_lock lock(state_->mutex, std::try_to_lock); lock) {
    state_->forget_those_of_the_parent();
    auto& pieces = state_->pieces;
    // The last one: what was used most recently is the likeliest to be in a cache.
    const auto last = std::find_if(pieces.rbegin(), pieces.rend(),
                                   [&](const State::Piece& p) { return p.bytes == bytes; });
    if (last != pieces.rend()) {
      found = last->begin;
      state_->kept_bytes -= bytes;
      pieces.erase(std::next(last).base());
    }
  }
  if (found != nullptr) {
    if (contents == PieceContents::kZeros) clear_piece(found, bytes);
    return found;
  }
  found = map_piece(bytes);
  if (found != nullptr) return found;
  if (const std::unique_lock lock(state_->mutex, std::try_to_lock); lock) state_->drop_all();
  found = map_piece(bytes);
  if (found == nullptr) throw std::bad_alloc();
  return found;
}

void PagePool::give_back(std::byte* piece, std::size_t size_bytes) noexcept {
  const std::size_t bytes =
      (size_bytes + pool_page_bytes() - 1) / pool_page_bytes() * pool_page_bytes();
  try {
    if (bytes <= state_->limit_bytes && is_touched(piece, bytes)) {
      if (const std::unique_lock lock(state_->mutex, std::try_to_lock); lock) {
        state_->forget_those_of_the_parent();
        state_->pieces.push_back({piece, bytes});
        state_->kept_bytes += bytes;
        while (state_->kept_bytes > state_->limit_bytes) state_->drop_first();
        return;
      }
    }
  } catch (const std::bad_alloc&) {
    // The list of pieces or of pages found no memory: this piece is some.
  }
  munmap(piece, bytes);
}

std::size_t PagePool::kept_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->kept_bytes;
}

PagePool& process_page_pool() {
  static auto* const pool = new PagePool(limit_of_process());
  return *pool;
}

}  // namespace attnbench
