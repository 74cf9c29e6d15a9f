// Functions of NCCL for ranks that are threads of one process, with memory that all of them see.
//
// It is as unforgiving as NCCL where that matters here: a rank that joins waits for all others and
// for ever, one that exchanges waits for them until its group is aborted, and all have to exchange
// the same. STUB_NCCL_NO_RANK: the number of a rank that cannot join. STUB_NCCL_MOVED: nothing is
// counted without it; else a file to which each finished exchange of rank 0 adds its name.
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kSystemError = 2;
constexpr int kInvalidArgument = 4;
constexpr int kFloat = 7;

struct Id {
  char bytes[128];
};

struct Part {
  const void* send = nullptr;
  void* receive = nullptr;
};

struct Group {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int joined = 0;
  bool aborted = false;
  // The exchange of now: everybody brings a part, then the last one does the work for all.
  std::vector<Part> parts;
  std::string what;
  bool differ = false;
  int arrived = 0;
  std::uint64_t number = 0;
};

struct Comm {
  Group* group;
  int rank;
};

/// Why never freed: ranks may wait in a group when the program ends.
std::mutex& groups_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::map<std::string, Group*>& groups() {
  static auto* const all = new std::map<std::string, Group*>;
  return *all;
}

using Move = std::function<void(std::vector<Part>& parts)>;

void note(const std::string& what) {
  const char* const path = std::getenv("STUB_NCCL_MOVED");
  if (path == nullptr) return;
  if (std::FILE* file = std::fopen(path, "a")) {
    std::fprintf(file, "%s\n", what.c_str());
    std::fclose(file);
  }
}

int exchange(Comm& comm, const std::string& what, const Part& own, const Move& move) {
  Group& group = *comm.group;
  std::unique_lock<std::mutex> lock(group.mutex);
  if (group.aborted) return kSystemError;
  group.parts[static_cast<std::size_t>(comm.rank)] = own;
  if (group.arrived > 0) group.differ |= group.what != what;
  group.what = what;
  const std::uint64_t mine = group.number;
  if (++group.arrived == group.size) {
    if (!group.differ) move(group.parts);
    group.arrived = 0;
    ++group.number;
    group.changed.notify_all();
    note(what);
  } else {
    group.changed.wait(lock, [&] { return group.number != mine || group.aborted; });
  }
  return group.differ || group.number == mine ? kInvalidArgument : kSuccess;
}

char* at(void* base, std::size_t offset) { return static_cast<char*>(base) + offset; }
const char* at(const void* base, std::size_t offset) {
  return static_cast<const char*>(base) + offset;
}

/// What this thread has sent and received since ncclGroupStart().
struct Pending {
  bool is_open = false;
  Comm* comm = nullptr;
  std::vector<const void*> sends;
  std::vector<void*> receives;
  std::size_t bytes = 0;
};
thread_local Pending pending;

int all_to_all(Pending call) {
  // By peer: in the table that the last rank moves by, buffers of all ranks are known.
  struct Tables {
    std::vector<const void*> sends;
    std::vector<void*> receives;
  } own{call.sends, call.receives};
  const std::size_t bytes = call.bytes;
  return exchange(*call.comm, "all_to_all " + std::to_string(bytes), {&own, nullptr},
                  [bytes](std::vector<Part>& parts) {
                    for (std::size_t to = 0; to < parts.size(); ++to) {
                      for (std::size_t from = 0; from < parts.size(); ++from) {
                        const auto* source = static_cast<const Tables*>(parts[from].send);
                        const auto* target = static_cast<const Tables*>(parts[to].send);
                        std::memcpy(target->receives[from], source->sends[to], bytes);
                      }
                    }
                  });
}

}  // namespace

extern "C" {

int ncclGetUniqueId(Id* id) {
  static int number = 0;
  const std::lock_guard<std::mutex> lock(groups_mutex());
  *id = Id{};
  std::snprintf(id->bytes, sizeof id->bytes, "group %d", ++number);
  return kSuccess;
}

int ncclCommInitRank(void** comm, int size, Id id, int rank) {
  const char* const missing = std::getenv("STUB_NCCL_NO_RANK");
  if (missing != nullptr && std::atoi(missing) == rank) return kSystemError;
  Group* group = nullptr;
  {
    const std::lock_guard<std::mutex> lock(groups_mutex());
    Group*& of_id = groups()[id.bytes];
    if (of_id == nullptr) of_id = new Group;
    group = of_id;
  }
  std::unique_lock<std::mutex> lock(group->mutex);
  group->size = size;
  group->parts.resize(static_cast<std::size_t>(size));
  ++group->joined;
  group->changed.notify_all();
  group->changed.wait(lock, [&] { return group->joined == size; });
  *comm = new Comm{group, rank};
  return kSuccess;
}

int ncclCommAbort(void* comm) {
  auto* const own = static_cast<Comm*>(comm);
  const std::lock_guard<std::mutex> lock(own->group->mutex);
  own->group->aborted = true;
  own->group->changed.notify_all();
  delete own;
  return kSuccess;
}

int ncclGroupStart() {
  pending = Pending{};
  pending.is_open = true;
  return kSuccess;
}

int ncclGroupEnd() {
  const Pending call = pending;
  pending = Pending{};
  return call.comm == nullptr ? kSuccess : all_to_all(call);
}

int ncclSend(const void* send, std::size_t bytes, int, int, void* comm, void*) {
  if (!pending.is_open) return kInvalidArgument;
  pending.comm = static_cast<Comm*>(comm);
  pending.sends.push_back(send);
  pending.bytes = bytes;
  return kSuccess;
}

int ncclRecv(void* receive, std::size_t, int, int, void*, void*) {
  if (!pending.is_open) return kInvalidArgument;
  pending.receives.push_back(receive);
  return kSuccess;
}

int ncclAllGather(const void* send, void* receive, std::size_t bytes, int, void* comm, void*) {
  return exchange(*static_cast<Comm*>(comm), "all_gather " + std::to_string(bytes), {send, receive},
                  [bytes](std::vector<Part>& parts) {
                    for (const Part& to : parts) {
                      for (std::size_t from = 0; from < parts.size(); ++from) {
                        std::memcpy(at(to.receive, from * bytes), parts[from].send, bytes);
                      }
                    }
                  });
}

int ncclReduceScatter(const void* send, void* receive, std::size_t count, int type, int, void* comm,
                      void*) {
  if (type != kFloat) return kInvalidArgument;
  return exchange(
      *static_cast<Comm*>(comm), "reduce_scatter " + std::to_string(count), {send, receive},
      [count](std::vector<Part>& parts) {
        for (std::size_t to = 0; to < parts.size(); ++to) {
          auto* const sums = static_cast<float*>(parts[to].receive);
          for (std::size_t i = 0; i < count; ++i) {
            float sum = 0;
            for (const Part& from : parts) {
              sum += *reinterpret_cast<const float*>(at(from.send, (to * count + i) * sizeof sum));
            }
            sums[i] = sum;
          }
        }
      });
}

int ncclAllReduce(const void* send, void* receive, std::size_t count, int type, int, void* comm,
                  void*) {
  if (type != kFloat) return kInvalidArgument;
  return exchange(*static_cast<Comm*>(comm), "all_reduce " + std::to_string(count), {send, receive},
                  [count](std::vector<Part>& parts) {
                    for (std::size_t i = 0; i < count; ++i) {
                      float sum = 0;
                      for (const Part& from : parts) {
                        sum += *reinterpret_cast<const float*>(at(from.send, i * sizeof sum));
                      }
                      for (const Part& to : parts) static_cast<float*>(to.receive)[i] = sum;
                    }
                  });
}

const char* ncclGetErrorString(int code) {
  return code == kSystemError ? "unhandled system error" : "invalid argument";
}

const char* ncclGetLastError(void*) { return ""; }
}
