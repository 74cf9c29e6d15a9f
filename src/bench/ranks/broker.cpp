// One thread: it waits for messages of its own machine and for MPI in turns. A wait for MPI sleeps
// between looks, because the cores are the pipelines'.
#include "bench/ranks/broker.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "bench/process/frames.h"
#include "bench/process/local_socket.h"
#include "bench/process/parcel.h"
#include "core/error.h"
#include "core/system/clock.h"
#include "core/system/printable.h"
#include "gpu/dynamic_library.h"
#include "mpi/mpi_module.h"

namespace attnbench {
namespace {

/// A scenario that another rank may still read.
constexpr double kStartLimitS = 120;
/// What a process may take to end, and its parent to say how.
constexpr double kEndLimitS = 5;
constexpr char kQuit = 'Q';
constexpr char kIdle = 'I';

double now_s() { return steady_clock().now_s(); }

/// What a broker says before an operation.
struct Intent {
  char kind = kIdle;
  char failed = 0;
  RankOperation operation;
  std::uint64_t text_bytes = 0;
  char words[512] = {};
};

template <std::size_t N>
void set_text(char (&target)[N], const std::string& text) {
  std::memset(target, 0, N);
  std::memcpy(target, text.data(), std::min(text.size(), N - 1));
}

const char* name_of(char kind) {
  switch (kind) {
    case kBroadcast:
      return "waits for an order";
    case kPass:
      return "passes tensors";
    case kMeet:
      return "is done";
    case kAllGather:
      return "gathers";
    case kAllToAll:
      return "exchanges";
    default:
      return "leaves";
  }
}

/// A process of this machine that talks with the broker.
struct Guest {
  Descriptor socket;
  MessageReader reader;
  std::deque<Message> inbox;
  pid_t pid = 0;
  bool gone = false;
};

class Broker {
 public:
  Broker(const AttnbenchMpi& mpi, LaunchedRank launched, Descriptor listener, pid_t child)
      : mpi_(mpi), rank_(launched), listener_(std::move(listener)), child_(child) {}

  /// Until rank 0's attnbench has ended. Its exit code on rank 0, else 0. An error of its own ends
  /// this process.
  int run() {
    try {
      return serve();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "attnbench: rank %d: %s\n", rank_.rank, error.what());
      end_here();
    }
  }

 private:
  int serve() {
    ::signal(SIGPIPE, SIG_IGN);
    // Why: the launcher sends these to end a run, which is for the child to do.
    ::signal(SIGINT, SIG_IGN);
    ::signal(SIGTERM, SIG_IGN);
    check(mpi_.make_group(rank_.size));
    for (;;) {
      Intent mine;
      std::string opening;
      if (rank_.rank == 0) mine.kind = wait_for_opening(opening) ? kOpen : kQuit;
      mine.text_bytes = opening.size();
      const std::vector<Intent> all = agree(rank_.size, mine);
      if (all[0].kind == kQuit) break;
      opening.resize(all[0].text_bytes);
      check(mpi_.start_broadcast(rank_.size, opening.data(), opening.size()));
      finish_operation();
      const int size = std::stoi(opening);
      if (rank_.rank < size) serve_group(size, opening);
    }
    return leave();
  }

  // What is heard on this machine.

  /// Takes in what has come, waiting up to `wait_ms` for it.
  void pump(int wait_ms) {
    std::vector<pollfd> waiting{{listener_.get(), POLLIN, 0}};
    std::vector<Guest*> guests;
    for (Guest* guest : {job_.get(), server_.get(), stranger_.get()}) {
      if (guest == nullptr || guest->gone) continue;
      waiting.push_back({guest->socket.get(), POLLIN, 0});
      guests.push_back(guest);
    }
    const int ready = ::poll(waiting.data(), waiting.size(), wait_ms);
    if (ready > 0) {
      for (std::size_t i = 0; i < guests.size(); ++i) {
        if (waiting[i + 1].revents != 0) hear(*guests[i]);
      }
      if (waiting[0].revents != 0) greet();
      know_stranger();
    }
    look_at_child();
  }

  static void hear(Guest& guest) {
    Message message;
    auto read = guest.reader.read(guest.socket.get(), message);
    while (read == MessageReader::Read::kMessage) {
      guest.inbox.push_back(std::move(message));
      message = Message();
      read = guest.reader.take(message) ? MessageReader::Read::kMessage
                                        : MessageReader::Read::kNothingYet;
    }
    if (read == MessageReader::Read::kEnded) guest.gone = true;
  }

  void greet() {
    const int socket = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    auto guest = std::make_unique<Guest>();
    guest->socket = Descriptor(socket);
    ucred credentials{};
    socklen_t size = sizeof credentials;
    const bool known = ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0;
    if (!known || credentials.uid != ::geteuid()) return;
    guest->pid = credentials.pid;
    stranger_ = std::move(guest);
  }

  /// A guest's first message says who it is.
  void know_stranger() {
    if (stranger_ == nullptr || stranger_->inbox.empty()) return;
    const char kind = stranger_->inbox.front().kind;
    stranger_->inbox.pop_front();
    (kind == kServerHello ? server_ : job_) = std::move(stranger_);
  }

  void look_at_child() {
    int status = 0;
    if (child_status_ || waitpid(child_, &status, WNOHANG) != child_) return;
    child_status_ = status;
  }

  std::optional<Message> message_of_job() {
    if (job_ == nullptr || job_->inbox.empty()) return std::nullopt;
    Message message = std::move(job_->inbox.front());
    job_->inbox.pop_front();
    return message;
  }

  // Between cases.

  /// On rank 0: false when attnbench has ended. Other messages are of a case that is over.
  bool wait_for_opening(std::string& opening) {
    for (;;) {
      while (std::optional<Message> message = message_of_job()) {
        if (message->kind != kOpen) continue;
        opening = message->text;
        return true;
      }
      if (child_status_) return false;
      pump(50);
    }
  }

  int leave() {
    server_.reset();  // which ends the child of other ranks
    const double end = now_s() + kEndLimitS;
    while (!child_status_ && now_s() < end) pump(20);
    if (!child_status_) ::kill(child_, SIGKILL);
    mpi_.finish();
    if (rank_.rank != 0 || !child_status_) return 0;
    return WIFEXITED(*child_status_) ? WEXITSTATUS(*child_status_) : 128 + WTERMSIG(*child_status_);
  }

  // MPI.

  void check(int error) const {
    if (error == 0) return;
    std::fprintf(stderr, "attnbench: rank %d: MPI: %s\n", rank_.rank, mpi_.last_error());
    end_here();
  }

  [[noreturn]] void end_here() const {
    if (!child_status_) ::kill(child_, SIGKILL);
    std::_Exit(4);
  }

  void finish_operation() {
    constexpr int kLooksAwake = 200;
    for (int look = 0;; ++look) {
      int done = 0;
      check(mpi_.test(&done));
      if (done != 0) return;
      if (look < kLooksAwake) {
        ::sched_yield();
      } else {
        ::usleep(look < 10 * kLooksAwake ? 20 : 500);
        if (look % 100 == 0) pump(0);
      }
    }
  }

  std::vector<Intent> agree(int size, const Intent& mine) {
    std::vector<Intent> all(static_cast<std::size_t>(size));
    check(mpi_.start_all_gather(size, &mine, all.data(), sizeof mine));
    finish_operation();
    return all;
  }

  // A case.

  void serve_group(int size, const std::string& opening) {
    check(mpi_.make_group(size));
    phase_ = "start";
    limit_s_ = rank_.rank == 0 ? 0 : kStartLimitS;
    if (rank_.rank != 0) {
      job_.reset();
      start_job(opening);
    }
    for (;;) {
      Message message;
      const Intent mine = next_intent(message);
      const std::vector<Intent> all = agree(size, mine);
      const std::string broken = what_is_wrong(all);
      if (!broken.empty()) {
        give_up(broken);
        break;
      }
      if (mine.kind == kClose) {
        answer(kAnswered, "");
        break;
      }
      perform(size, all, mine, message);
    }
    shared_ = MappedFile();
  }

  void start_job(const std::string& opening) {
    const double end = now_s() + kStartLimitS;
    while (server_ == nullptr && !child_status_ && now_s() < end) pump(20);
    if (server_ == nullptr) return;
    server_->inbox.clear();
    send_message(server_->socket.get(), kOpen, fmt::format("{} {}", rank_.rank, opening));
  }

  /// Waits for what the rank of this machine does next.
  Intent next_intent(Message& message) {
    Intent mine;
    const double begin = now_s();
    for (;;) {
      if (std::optional<Message> next = message_of_job()) {
        message = std::move(*next);
        return intent_of(message);
      }
      std::string failure;
      if (job_ != nullptr && job_->gone) {
        failure = "its process ended" + how_job_ended();
      } else if (rank_.rank != 0 && child_status_) {
        failure = "attnbench ended there: " + describe_wait_status(*child_status_);
      } else if (limit_s_ > 0 && now_s() - begin > limit_s_ && job_ == nullptr) {
        failure = fmt::format("its process has not started after {:.0f} s", limit_s_);
      } else if (limit_s_ > 0 && now_s() - begin > limit_s_) {
        failure = fmt::format("no progress for {:.0f} s; killed (--hang-limit)", limit_s_);
      } else {
        pump(20);
        continue;
      }
      mine.failed = 1;
      set_text(mine.words, failure);
      return mine;
    }
  }

  static Intent intent_of(const Message& message) {
    Intent mine;
    mine.kind = message.kind;
    if (message.kind == kGiveUp) {
      mine.failed = 1;
      set_text(mine.words, message.text);
      return mine;
    }
    if (message.text.size() < sizeof(RankOperation)) return mine;
    std::memcpy(&mine.operation, message.text.data(), sizeof(RankOperation));
    mine.text_bytes = message.text.size() - sizeof(RankOperation);
    return mine;
  }

  /// ": signal 9 (Killed)", from the process that started it.
  std::string how_job_ended() {
    const double end = now_s() + kEndLimitS;
    while (rank_.rank != 0 && server_ != nullptr && !server_->gone && now_s() < end) {
      for (const Message& message : server_->inbox) {
        const std::string of_job = fmt::format("{} ", job_->pid);
        if (message.kind != kJobEnded || !message.text.starts_with(of_job)) continue;
        return ": " + message.text.substr(of_job.size());
      }
      pump(20);
    }
    return "";
  }

  /// Empty where all ranks do the same; else the sentence that every rank gives up with.
  std::string what_is_wrong(const std::vector<Intent>& all) const {
    std::string failures;
    bool differ = false;
    std::string doings;
    for (std::size_t r = 0; r < all.size(); ++r) {
      const Intent& one = all[r];
      if (one.failed != 0) {
        failures += fmt::format("{}rank {}: {} (phase '{}')", failures.empty() ? "" : "; ", r,
                                one.words, phase_);
      }
      const RankOperation& a = one.operation;
      const RankOperation& b = all[0].operation;
      differ |= one.kind != all[0].kind || a.from != b.from || a.to != b.to || a.bytes != b.bytes;
      doings += fmt::format("{}rank {} {}", r == 0 ? "" : ", ", r, name_of(one.kind));
    }
    if (!failures.empty()) return failures;
    if (differ) return fmt::format("ranks disagree in phase '{}': {}", phase_, doings);
    return "";
  }

  void give_up(const std::string& reason) {
    answer(kBroken, reason);
    if (rank_.rank == 0 || job_ == nullptr) return;
    ::kill(-job_->pid, SIGKILL);
    ::kill(job_->pid, SIGKILL);
  }

  void answer(char kind, const std::string& text, int file = -1) {
    if (job_ != nullptr && !job_->gone) send_message(job_->socket.get(), kind, text, file);
  }

  void perform(int size, const std::vector<Intent>& all, const Intent& mine, Message& message) {
    switch (mine.kind) {
      case kBroadcast:
        return broadcast(size, all[0], message);
      case kPass:
        return pass(size, all, message);
      case kAllGather:
      case kAllToAll:
        return exchange(size, mine, message);
      default:
        return answer(kAnswered, "");
    }
  }

  void broadcast(int size, const Intent& of_root, const Message& message) {
    std::string text(of_root.text_bytes, '\0');
    if (rank_.rank == 0) text = message.text.substr(sizeof(RankOperation));
    check(mpi_.start_broadcast(size, text.data(), text.size()));
    finish_operation();
    phase_ = of_root.operation.phase;
    // Rank 0 is in the hands of the process that started it.
    limit_s_ = rank_.rank == 0 ? 0 : of_root.operation.limit_s;
    answer(kAnswered, text);
  }

  void pass(int size, const std::vector<Intent>& all, const Message& message) {
    const int from = all[0].operation.from;
    const int to = all[0].operation.to;
    const Intent& sender = all[static_cast<std::size_t>(from)];
    if (rank_.rank == from) {
      const std::string text = message.text.substr(sizeof(RankOperation));
      check(mpi_.start_send(size, to, text.data(), text.size()));
      finish_operation();
      const MappedFile file(message.file.get(), sender.operation.file_bytes);
      check(mpi_.start_send(size, to, file.data(), sender.operation.file_bytes));
      finish_operation();
      return answer(kAnswered, "");
    }
    if (rank_.rank != to) return answer(kAnswered, "");
    std::string text(sender.text_bytes, '\0');
    check(mpi_.start_receive(size, from, text.data(), text.size()));
    finish_operation();
    const Descriptor file = new_memory_file(sender.operation.file_bytes);
    {
      const MappedFile bytes(file.get(), sender.operation.file_bytes);
      check(mpi_.start_receive(size, from, bytes.data(), sender.operation.file_bytes));
      finish_operation();
    }
    answer(kAnswered, text, file.get());
  }

  /// Between halves of memory that the job shares: what is sent, then what is received.
  void exchange(int size, const Intent& mine, Message& message) {
    const std::size_t bytes = mine.operation.bytes;
    const std::size_t all = bytes * static_cast<std::size_t>(size);
    const bool gathers = mine.kind == kAllGather;
    const std::size_t sent = gathers ? bytes : all;
    if (message.file.get() >= 0) {
      struct stat status {};
      ::fstat(message.file.get(), &status);
      shared_ = MappedFile(message.file.get(), static_cast<std::size_t>(status.st_size));
    }
    if (shared_.size() < sent + all) {
      fail(ErrorKind::kInternal, "rank {}: too little memory is shared", rank_.rank);
    }
    std::byte* const received = shared_.data() + sent;
    check(gathers ? mpi_.start_all_gather(size, shared_.data(), received, bytes)
                  : mpi_.start_all_to_all(size, shared_.data(), received, bytes));
    finish_operation();
    answer(kAnswered, "");
  }

  const AttnbenchMpi& mpi_;
  LaunchedRank rank_;
  Descriptor listener_;
  pid_t child_;
  std::optional<int> child_status_;
  std::unique_ptr<Guest> job_;
  std::unique_ptr<Guest> server_;
  std::unique_ptr<Guest> stranger_;
  std::string phase_;
  double limit_s_ = 0;
  MappedFile shared_;
};

int number_of(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::atoi(text);
}

/// Why not by launcher: srun --mpi=pmi2 sets PMI_RANK, and the local rank in Slurm's variable only.
int launched_local_rank() {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"}) {
    if (const int rank = number_of(name, -1); rank >= 0) return rank;
  }
  return 0;
}

/// libattnbench_mpi.so beside the program, or where it is installed.
const AttnbenchMpi* open_mpi(std::string& missing) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path folder = program.parent_path();
  static const DynamicLibrary library(
      {folder / "libattnbench_mpi.so", folder.parent_path() / "lib" / "libattnbench_mpi.so",
       "libattnbench_mpi.so"},
      DynamicLibrary::Symbols::kGlobal);
  AttnbenchMpiTable table = nullptr;
  if (!library.is_open()) {
    missing = "this attnbench was built without MPI, or its libattnbench_mpi.so does not load";
  } else if (!library.bind(table, "attnbench_mpi") || table()->version != ATTNBENCH_MPI_VERSION) {
    missing = "libattnbench_mpi.so is of another version";
  }
  return missing.empty() ? table() : nullptr;
}

}  // namespace

LaunchedRank launched_rank() {
  struct Names {
    const char* rank;
    const char* size;
  };
  // Open MPI, MPICH and its relatives, Slurm.
  constexpr Names kLaunchers[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
  };
  for (const Names& names : kLaunchers) {
    const int size = number_of(names.size, 1);
    if (size > 1) return {number_of(names.rank, 0), size, launched_local_rank()};
  }
  return {};
}

RankHome start_broker() {
  RankHome home{launched_rank(), "", ""};
  if (home.launched.size < 2) {
    home.missing = "attnbench was not started by mpirun or srun";
    return home;
  }
  const AttnbenchMpi* const mpi = open_mpi(home.missing);
  if (mpi == nullptr) return home;
  home.socket = fmt::format("attnbench-{}-{}", ::getpid(), home.launched.rank);
  Descriptor listener = listen_at(home.socket);
  const pid_t broker = ::getpid();
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) fail(ErrorKind::kInternal, "no child process: {}", std::strerror(errno));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != broker) std::_Exit(0);
    return home;
  }
  int rank = 0;
  int size = 0;
  if (mpi->init(&rank, &size) != 0 || size != home.launched.size) {
    std::fprintf(stderr,
                 "attnbench: MPI has %d processes, the launcher started %d: it may be that of "
                 "another MPI than attnbench was built with\n",
                 size, home.launched.size);
    ::kill(child, SIGKILL);
    std::_Exit(4);
  }
  home.launched.rank = rank;
  std::_Exit(Broker(*mpi, home.launched, std::move(listener), child).run());
}

}  // namespace attnbench
