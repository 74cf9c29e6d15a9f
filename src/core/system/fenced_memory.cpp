// The handler of SIGSEGV runs in the middle of anything, so it knows the memory from a table of
// plain words without locks, and calls nothing but mprotect().
#include "core/system/fenced_memory.h"

#include <fmt/core.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>

namespace attnbench {
namespace {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Addresses without memory from a multiple of `alignment`, which is one of the page size.
std::byte* reserve(std::size_t size_bytes, std::size_t alignment) {
  const std::size_t more = alignment - page_bytes();
  void* const address =
      mmap(nullptr, size_bytes + more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(address);
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(begin) % alignment;
  if (head > 0) munmap(begin, head);
  if (head < more) munmap(begin + head + size_bytes, more - head);
  return begin + head;
}

enum class Access : int { kRead, kWrite, kUnknown };

const char* verb_of(Access access) {
  switch (access) {
    case Access::kRead:
      return "reads";
    case Access::kWrite:
      return "writes";
    case Access::kUnknown:
      break;
  }
  return "reads or writes";
}

Access access_of(const ucontext_t& context) {
#if defined(__x86_64__)
  constexpr greg_t kWriteBit = 2;  // of the page fault's error code
  return (context.uc_mcontext.gregs[REG_ERR] & kWriteBit) != 0 ? Access::kWrite : Access::kRead;
#else
  static_cast<void>(context);
  return Access::kUnknown;
#endif
}

bool is_large(std::size_t mapped) { return mapped >= 4 * kHugePage; }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/// A sanitizer is to see who touches what was given back.
std::size_t most_kept_bytes() { return 0; }
#else
std::size_t most_kept_bytes() {
  const auto pages = static_cast<std::size_t>(std::max(sysconf(_SC_PHYS_PAGES), 0L));
  return std::min(std::size_t{1} << 30, pages / 16 * page_bytes());
}
#endif

/// Reservations of memories that are gone, with their pages, for those of the same size that come:
/// the buffers of a pipeline are made anew for each run of it, and to fetch and clear their pages
/// was a quarter of the time of small cases. Nobody can touch what is kept, as if it had been given
/// back.
///
/// A thread that finds the list in use goes to the system instead of waiting, so a child that was
/// forked in the middle of a call is not stuck.
class KeptReservations {
 public:
  /// Null: none of that size.
  std::byte* take(std::size_t size_bytes) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return nullptr;
    forget_those_of_the_parent();
    const auto last = std::find_if(pieces_.rbegin(), pieces_.rend(),
                                   [&](const Piece& p) { return p.size_bytes == size_bytes; });
    if (last == pieces_.rend()) return nullptr;
    std::byte* const begin = last->begin;
    kept_bytes_ -= usable(size_bytes);
    pieces_.erase(std::next(last).base());
    return begin;
  }
  /// Whether it is kept; the caller still has it otherwise.
  bool keep(std::byte* begin, std::size_t size_bytes) noexcept {
    if (usable(size_bytes) > most_bytes_) return false;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || mprotect(begin, size_bytes, PROT_NONE) != 0) return false;
    try {
      forget_those_of_the_parent();
      pieces_.push_back({begin, size_bytes});
    } catch (const std::bad_alloc&) {
      return false;
    }
    kept_bytes_ += usable(size_bytes);
    while (kept_bytes_ > most_bytes_ || pieces_.size() > kMostPieces) drop_first();
    return true;
  }

 private:
  struct Piece {
    std::byte* begin;
    std::size_t size_bytes;
  };
  /// Each has 32 MiB of addresses and some of the mappings that a process may have.
  static constexpr std::size_t kMostPieces = 256;

  static std::size_t usable(std::size_t size_bytes) {
    return size_bytes - 2 * FencedMemory::kFence;
  }
  void drop_first() {
    munmap(pieces_.front().begin, pieces_.front().size_bytes);
    kept_bytes_ -= usable(pieces_.front().size_bytes);
    pieces_.pop_front();
  }
  /// Why: a child shares the pages of its parent, and writing to them would copy each.
  void forget_those_of_the_parent() {
    if (owner_ == getpid()) return;
    owner_ = getpid();
    while (!pieces_.empty()) drop_first();
  }

  const std::size_t most_bytes_ = most_kept_bytes();
  std::mutex mutex_;
  std::deque<Piece> pieces_;  // the longest-kept first
  std::size_t kept_bytes_ = 0;
  pid_t owner_ = getpid();
};

/// Never destroyed: buffers with static lifetime may outlive anything.
KeptReservations& kept_reservations() {
  static auto* const kept = new KeptReservations;
  return *kept;
}

}  // namespace

/// What the handler knows of one memory, and what it says of it.
struct FencedMemory::Watch {
  static constexpr std::size_t kPages = 32;

  std::atomic<std::uintptr_t> begin{0};  // with the fences; 0 = nobody's
  std::atomic<std::uintptr_t> end{0};
  std::atomic<std::uintptr_t> mapped{0};
  std::atomic<std::uintptr_t> mapped_end{0};
  std::atomic<std::uintptr_t> address{0};  // first that was touched
  std::atomic<int> access{0};
  std::atomic<std::size_t> num_pages{0};  // that were opened; the first kPages are kept
  std::array<std::atomic<std::uintptr_t>, kPages> pages{};
};

/// One for the process, which handlers of signals are.
struct FaultHandler {
  static constexpr std::size_t kWatches = 4096;

  static std::array<FencedMemory::Watch, kWatches>& watches() {
    static std::array<FencedMemory::Watch, kWatches> all;
    return all;
  }
  static struct sigaction& previous() {
    static struct sigaction action = {};
    return action;
  }

  /// Makes it the handler again where others, such as Python or a test's own, came after it.
  static void install() {
    static std::mutex one;
    const std::lock_guard lock(one);
    struct sigaction now = {};
    sigaction(SIGSEGV, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &handle) return;
    watches();
    page_bytes();
    previous() = now;
    struct sigaction action = {};
    action.sa_sigaction = &handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, nullptr);
  }

  /// Whether the fault was in a fence, which is open there now.
  static bool open_fence(std::uintptr_t address, Access access) {
    for (FencedMemory::Watch& watch : watches()) {
      const std::uintptr_t begin = watch.begin.load(std::memory_order_acquire);
      if (begin == 0 || address < begin || address >= watch.end.load()) continue;
      if (address >= watch.mapped.load() && address < watch.mapped_end.load()) return false;
      const std::uintptr_t page = address / page_bytes() * page_bytes();
      auto* memory = reinterpret_cast<std::byte*>(page);
      if (mprotect(memory, page_bytes(), PROT_READ | PROT_WRITE) != 0) return false;
      fill_zone({memory, page_bytes()});
      std::uintptr_t none = 0;
      if (watch.address.compare_exchange_strong(none, address)) {
        watch.access.store(static_cast<int>(access));
      }
      const std::size_t count = watch.num_pages.fetch_add(1);
      if (count < watch.pages.size()) watch.pages[count].store(page);
      return true;
    }
    return false;
  }

  static void handle(int, siginfo_t* info, void* context) {
    const int error = errno;
    const bool is_fault = info->si_code > 0;  // not sent by kill() or raise()
    if (is_fault && open_fence(reinterpret_cast<std::uintptr_t>(info->si_addr),
                               access_of(*static_cast<ucontext_t*>(context)))) {
      errno = error;
      return;
    }
    // Somebody else's: what would have happened without this handler. A fault comes again when this
    // returns; one that was sent has to be sent once more.
    static std::atomic<bool> was_passed_on{false};
    if (was_passed_on.exchange(true)) {
      ::signal(SIGSEGV, SIG_DFL);  // others gave it back
    } else {
      sigaction(SIGSEGV, &previous(), nullptr);
    }
    if (!is_fault) raise(SIGSEGV);
  }

  /// Null when all are in use.
  static FencedMemory::Watch* claim(std::byte* begin, std::byte* end, std::byte* mapped,
                                    std::byte* mapped_end) {
    install();
    const std::lock_guard lock(mutex());
    for (FencedMemory::Watch& watch : watches()) {
      if (watch.begin.load() != 0) continue;
      watch.address.store(0);
      watch.num_pages.store(0);
      watch.end.store(reinterpret_cast<std::uintptr_t>(end));
      watch.mapped.store(reinterpret_cast<std::uintptr_t>(mapped));
      watch.mapped_end.store(reinterpret_cast<std::uintptr_t>(mapped_end));
      watch.begin.store(reinterpret_cast<std::uintptr_t>(begin), std::memory_order_release);
      return &watch;
    }
    return nullptr;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
};

FencedMemory::FencedMemory(std::size_t size_bytes, std::size_t alignment, Placement placement)
    : size_bytes_(size_bytes) {
  const std::size_t payload = round_up(size_bytes, alignment);
  if (payload < size_bytes || payload > SIZE_MAX / 4) throw std::bad_alloc();
  const std::size_t mapped = round_up(payload + kGuardBytes, page_bytes());
  reserved_bytes_ = mapped + 2 * kFence;
  reserved_ = kept_reservations().take(reserved_bytes_);
  const bool is_new = reserved_ == nullptr;
  if (is_new) reserved_ = reserve(reserved_bytes_, is_large(mapped) ? kHugePage : page_bytes());
  mapped_ = reserved_ + kFence;
  mapped_end_ = mapped_ + mapped;
  if (mprotect(mapped_, mapped, PROT_READ | PROT_WRITE) != 0) {
    munmap(reserved_, reserved_bytes_);
    throw std::bad_alloc();
  }
  // Why: the first touch takes less than half of the time. Refused where the system has none.
  if (is_new && is_large(mapped)) madvise(mapped_, mapped, MADV_HUGEPAGE);
  data_ = placement == Placement::kAtStart ? mapped_ : mapped_end_ - payload;
  fill_zone(before());
  fill_zone(after());
  watch_ = FaultHandler::claim(reserved_, reserved_ + reserved_bytes_, mapped_, mapped_end_);
}

FencedMemory::~FencedMemory() {
  const bool has_closed_fences = watch_ == nullptr || watch_->address.load() == 0;
  if (watch_ != nullptr) watch_->begin.store(0, std::memory_order_release);
  if (has_closed_fences && kept_reservations().keep(reserved_, reserved_bytes_)) return;
  munmap(reserved_, reserved_bytes_);
}

bool FencedMemory::holds(const void* begin, std::size_t size_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  for (const Watch& watch : FaultHandler::watches()) {
    if (watch.begin.load(std::memory_order_acquire) == 0) continue;
    const std::uintptr_t end = watch.mapped_end.load();
    if (address >= watch.mapped.load() && address < end) return size_bytes <= end - address;
  }
  return false;
}

std::span<std::byte> FencedMemory::before() const { return {mapped_, data_}; }
std::span<std::byte> FencedMemory::after() const { return {data_ + size_bytes_, mapped_end_}; }

std::string FencedMemory::check(std::span<std::byte> zone, bool is_before, const std::string& name,
                                std::size_t gap_bytes) const {
  const auto* first = reinterpret_cast<const unsigned char*>(zone.data());
  std::string found = describe_zone({first, zone.size()}, reinterpret_cast<std::uintptr_t>(first),
                                    is_before, name, size_bytes_, gap_bytes);
  if (!found.empty()) fill_zone(zone);
  return found;
}

std::string FencedMemory::take_accesses(const std::string& name) {
  FaultHandler::install();
  const std::string zones =
      join_zones(check(before(), true, name, 0), check(after(), false, name, 0));
  if (watch_ == nullptr || watch_->address.load() == 0) return zones;
  const std::string outside = check_fences(name);
  close_fences();
  return join_zones(zones, outside);
}

/// What was done where no memory is: writes by the bytes that they left, else the first access.
std::string FencedMemory::check_fences(const std::string& name) {
  const std::size_t count = std::min(watch_->num_pages.load(), watch_->pages.size());
  for (std::size_t i = 0; i < count; ++i) {
    auto* page = reinterpret_cast<std::byte*>(watch_->pages[i].load());
    const bool is_before = page < mapped_;
    const auto gap = static_cast<std::size_t>(is_before ? data_ - (page + page_bytes())
                                                        : page - (data_ + size_bytes_));
    std::string found = check({page, page_bytes()}, is_before, name, gap);
    if (!found.empty()) return found;
  }
  const auto* address = reinterpret_cast<const std::byte*>(watch_->address.load());
  const char* verb = verb_of(static_cast<Access>(watch_->access.load()));
  if (address < mapped_) {
    return fmt::format("{} before the start of '{}' ({} bytes before it)", verb, name,
                       data_ - address);
  }
  return fmt::format("{} past the end of '{}' ({} bytes behind it)", verb, name,
                     address - (data_ + size_bytes_));
}

void FencedMemory::close_fences() {
  // Why a new mapping: it also gives back the pages.
  const auto close = [](std::byte* begin) {
    mmap(begin, kFence, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  };
  close(reserved_);
  close(mapped_end_);
  watch_->num_pages.store(0);
  watch_->address.store(0);
}

}  // namespace attnbench
