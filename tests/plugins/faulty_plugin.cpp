// The example plugin with one change a backend: other conventions that are declared, and faults.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "attnbench_backend.h"

// The example's own entry point under another name.
#define attnbench_backend naive_backend
#include "naive_attention.cpp"
#undef attnbench_backend

namespace {

enum class Kind {
  kRight,
  kSilent,         // writes nothing
  kWrong,          // the last head is off by a hundredth
  kUnsteady,       // other bytes in every run
  kWritesPadding,  // the first row that is no token's
  kOverrunOutput,
  kUnderrunLse,
  kOverrunWorkspace,
  kReadsPastSeqLens,  // and past the rest of a vector
  kReadsBeforeQuery,
  kWritesCache,
  kWritesQuery,
  kWritesSeqLens,
  kWritesQueryStartLoc,
  kRemembers,        // computes in its first run, and gives that again in every other
  kRemembersLater,   // the same from a later run on
  kRemembersScores,  // attends with query and keys of its first run
  // What only a timed sample can show: right until everything else was checked.
  kRemembersScoresLater,  // the same of a later run
  kRemembersByKey,        // gives what it gave where query and values had the same magnitudes
  kRemembersHalf,         // the second half of the rows is that of a later run
  kSkipsWhatIsThere,      // returns at once unless the output is poison
  kFinishesLater,         // a thread goes on behind run()
  kStartsEarlier,         // a thread computes whenever the query changes, run() only copies
  kAllocatesInRun,
  kLeavesProcess,
  kLeavesProcessAndCrashes,
  kPrints,
  kHangs,
  kCrashes,
  kExits,
  kFails,
  kThrows,
  kHangsInSupports,
  kRefuses,
  kRefusesBlankly,
  kThrowsInSupports,
  kThrowsInDestroy,
  kOnlyBatches,  // refuses what has one request
  kFailsInPrepare,
  kThrowsInPrepare,
  kWantsTooMuch,
};

/// What is written is base 2 or +inf, whatever is declared.
struct Variant {
  const char* name;
  Kind kind = Kind::kRight;
  bool writes_base_2 = false;
  bool writes_plus_inf = false;
  uint32_t lse = ATTNBENCH_LSE_NATURAL;
  uint32_t empty_rows = ATTNBENCH_EMPTY_MINUS_INF;
  uint32_t kv = ATTNBENCH_KV_PAGED;
  uint64_t features = ~0ull;  // of those that the example has
  uint32_t nondeterministic = 0;
};

constexpr Variant kVariants[] = {
    {"RIGHT"},
    {"RAGGED", Kind::kRight, false, false, ATTNBENCH_LSE_NATURAL, ATTNBENCH_EMPTY_MINUS_INF,
     ATTNBENCH_KV_RAGGED},
    {"INTERLEAVED", Kind::kRight, false, false, ATTNBENCH_LSE_NATURAL, ATTNBENCH_EMPTY_MINUS_INF,
     ATTNBENCH_KV_PAGED_INTERLEAVED},
    {"PLAIN", Kind::kRight, false, false, ATTNBENCH_LSE_NATURAL, ATTNBENCH_EMPTY_MINUS_INF,
     ATTNBENCH_KV_PAGED, ATTNBENCH_CAUSAL},
    {"NO_LSE", Kind::kRight, false, false, ATTNBENCH_LSE_NONE},
    {"BASE_2", Kind::kRight, true, false, ATTNBENCH_LSE_BASE_2},
    {"PLUS_INF", Kind::kRight, false, true, ATTNBENCH_LSE_NATURAL, ATTNBENCH_EMPTY_PLUS_INF},
    {"BASE_2_PLUS_INF", Kind::kRight, true, true, ATTNBENCH_LSE_BASE_2, ATTNBENCH_EMPTY_PLUS_INF},
    {"SAYS_NATURAL", Kind::kRight, true, false, ATTNBENCH_LSE_NATURAL},
    {"SAYS_BASE_2", Kind::kRight, false, false, ATTNBENCH_LSE_BASE_2},
    {"SAYS_MINUS_INF", Kind::kRight, false, true, ATTNBENCH_LSE_NATURAL, ATTNBENCH_EMPTY_MINUS_INF},
    {"SAYS_PLUS_INF", Kind::kRight, false, false, ATTNBENCH_LSE_NATURAL, ATTNBENCH_EMPTY_PLUS_INF},
    {"SAYS_NEITHER", Kind::kRight, true, true, ATTNBENCH_LSE_NATURAL, ATTNBENCH_EMPTY_MINUS_INF},
    {"SILENT", Kind::kSilent},
    {"WRONG", Kind::kWrong},
    {"UNSTEADY", Kind::kUnsteady},
    {"UNSTEADY_SAYS_SO", Kind::kUnsteady, false, false, ATTNBENCH_LSE_NATURAL,
     ATTNBENCH_EMPTY_MINUS_INF, ATTNBENCH_KV_PAGED, ~0ull, 1},
    {"WRITES_PADDING", Kind::kWritesPadding},
    {"OVERRUN_OUTPUT", Kind::kOverrunOutput},
    {"UNDERRUN_LSE", Kind::kUnderrunLse},
    {"OVERRUN_WORKSPACE", Kind::kOverrunWorkspace},
    {"READS_PAST_SEQ_LENS", Kind::kReadsPastSeqLens},
    {"READS_BEFORE_QUERY", Kind::kReadsBeforeQuery},
    {"WRITES_CACHE", Kind::kWritesCache},
    {"WRITES_QUERY", Kind::kWritesQuery},
    {"WRITES_SEQ_LENS", Kind::kWritesSeqLens},
    {"WRITES_QUERY_START_LOC", Kind::kWritesQueryStartLoc},
    {"REMEMBERS", Kind::kRemembers},
    {"REMEMBERS_LATER", Kind::kRemembersLater},
    {"REMEMBERS_SCORES", Kind::kRemembersScores},
    {"REMEMBERS_SCORES_LATER", Kind::kRemembersScoresLater},
    {"REMEMBERS_BY_KEY", Kind::kRemembersByKey},
    {"REMEMBERS_HALF", Kind::kRemembersHalf},
    {"SKIPS_WHAT_IS_THERE", Kind::kSkipsWhatIsThere},
    {"FINISHES_LATER", Kind::kFinishesLater},
    {"STARTS_EARLIER", Kind::kStartsEarlier},
    {"ALLOCATES_IN_RUN", Kind::kAllocatesInRun},
    {"LEAVES_PROCESS", Kind::kLeavesProcess},
    {"LEAVES_PROCESS_AND_CRASHES", Kind::kLeavesProcessAndCrashes},
    {"PRINTS", Kind::kPrints},
    {"HANGS", Kind::kHangs},
    {"CRASHES", Kind::kCrashes},
    {"EXITS", Kind::kExits},
    {"FAILS", Kind::kFails},
    {"THROWS", Kind::kThrows},
    {"HANGS_IN_SUPPORTS", Kind::kHangsInSupports},
    {"REFUSES", Kind::kRefuses},
    {"REFUSES_BLANKLY", Kind::kRefusesBlankly},
    {"THROWS_IN_SUPPORTS", Kind::kThrowsInSupports},
    {"THROWS_IN_DESTROY", Kind::kThrowsInDestroy},
    {"ONLY_BATCHES", Kind::kOnlyBatches},
    {"FAILS_IN_PREPARE", Kind::kFailsInPrepare},
    {"THROWS_IN_PREPARE", Kind::kThrowsInPrepare},
    {"WANTS_TOO_MUCH", Kind::kWantsTooMuch},
};

constexpr int64_t kWorkspaceBytes = 1000;
/// As a kernel does that writes whole tiles. attnbench keeps three rows of padding behind the last.
constexpr std::size_t kTileRows = 4;

struct Faulty {
  Variant variant;
  void* naive;  // state of the example
  const AttnbenchTensors* tensors;
  std::vector<float> lse;  // where the plugin has none
  int64_t lse_strides[2];
  AttnbenchTensor lse_tensor;
  AttnbenchTensors own_tensors;
  char* workspace;
  const AttnbenchHost* host;
  std::vector<char> remembered;
  std::vector<float> remembered_lse;
  std::vector<char> remembered_query, remembered_keys;
  AttnbenchTensor query_tensor, key_tensor;
  std::vector<char> own_table, own_starts;
  AttnbenchTensor table_tensor, starts_tensor;
  int runs;
  std::vector<char> key;  // of what is remembered
  std::thread thread;
  std::mutex mutex;
  std::vector<char> early;  // the output as the thread computed it last
  std::atomic<bool> ends{false};

  /// The thread uses `naive`, and so ends before that does.
  void end_thread() {
    ends = true;
    if (thread.joinable()) thread.join();
  }
};

/// Five runs are checked before timing, and the first warm-up run is always taken: from here on a
/// run is a sample or warms up for one. Why no later: three samples are judged, drawn at random.
constexpr int kLater = 6;

const AttnbenchBackend& naive() { return *naive_backend(0); }

const Variant& variant_of(const AttnbenchBackend* self) {
  return *static_cast<const Variant*>(self->user);
}

/// At work, which nothing but a signal ends.
[[noreturn]] void spin() {
  for (volatile int i = 0;; i = 1 - i) {
  }
}

/// Asleep, which leaves the core to other tests.
[[noreturn]] void hang() {
  while (true) pause();
}

const char* faulty_supports(const AttnbenchBackend* self, const AttnbenchProblem* problem) {
  switch (variant_of(self).kind) {
    case Kind::kHangsInSupports:
      hang();
    case Kind::kRefuses:
      return "no luck today\nand none tomorrow";
    case Kind::kRefusesBlankly:
      return "\n  \n";
    case Kind::kThrowsInSupports:
      throw std::runtime_error("no answer");
    case Kind::kPrints:
      std::puts("supports() was here");
      return nullptr;
    case Kind::kOnlyBatches:
      return problem->num_requests < 2 ? "a single request" : nullptr;
    default:
      return naive().supports(self, problem);
  }
}

const char* faulty_prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                           const AttnbenchTensors* tensors, const AttnbenchHost* host,
                           void** state) {
  const Variant& variant = variant_of(self);
  // Whatever the form of the keys: nothing can be computed before it is timed.
  const AttnbenchTensor* keys = tensors->key_cache ? tensors->key_cache : tensors->key;
  if (!std::isnan(load(tensors->query, 0)) || !std::isnan(load(keys, 0))) {
    return "the values are there already";
  }
  if (variant.kind == Kind::kFailsInPrepare) return "the plan does not fit";
  if (variant.kind == Kind::kThrowsInPrepare) throw std::runtime_error("no plan");
  if (variant.kind == Kind::kWantsTooMuch) {
    return host->allocate(host, SIZE_MAX / 4, "a whole world") ? nullptr : "no world";
  }
  auto* faulty = new Faulty{};
  faulty->variant = variant;
  faulty->tensors = tensors;
  faulty->own_tensors = *tensors;
  faulty->host = host;
  if (tensors->lse == nullptr) {
    faulty->lse.resize(static_cast<std::size_t>(problem->num_tokens * problem->num_heads));
    faulty->lse_strides[0] = problem->num_tokens;
    faulty->lse_strides[1] = 1;
    faulty->lse_tensor.data = faulty->lse.data();
    faulty->lse_tensor.dtype.bits = 32;
    faulty->lse_tensor.strides = faulty->lse_strides;
    faulty->own_tensors.lse = &faulty->lse_tensor;
  }
  faulty->workspace =
      static_cast<char*>(host->allocate(host, kWorkspaceBytes, "workspace of FAULTY"));
  // Poisoned, and writable to its last byte.
  if (faulty->workspace[0] != '\xFF' || faulty->workspace[kWorkspaceBytes - 1] != '\xFF') {
    return "the workspace is not poison";
  }
  *state = faulty;
  return naive().prepare(self, problem, &faulty->own_tensors, host, &faulty->naive);
}

void convert_lse(const Faulty& faulty) {
  const AttnbenchTensor* lse = faulty.tensors->lse;
  if (lse == nullptr) return;
  for (int64_t head = 0; head < lse->shape[0]; ++head) {
    for (int64_t row = 0; row < lse->shape[1]; ++row) {
      float& value = static_cast<float*>(lse->data)[head * lse->strides[0] + row];
      if (std::isinf(value)) {
        value = faulty.variant.writes_plus_inf ? -value : value;
      } else if (faulty.variant.writes_base_2) {
        value /= std::log(2.0f);
      }
    }
  }
}

int64_t size_of(const AttnbenchTensor* tensor) {
  int64_t bytes = tensor->dtype.bits / 8;
  for (int axis = 0; axis < tensor->ndim; ++axis) bytes *= tensor->shape[axis];
  return bytes;
}

char* bytes_of(const AttnbenchTensor* tensor) { return static_cast<char*>(tensor->data); }

/// Whether the output is that of an earlier run.
bool remembers(Faulty& faulty) {
  const Kind kind = faulty.variant.kind;
  if (kind != Kind::kRemembers && kind != Kind::kRemembersLater) return false;
  const AttnbenchTensor* output = faulty.tensors->output;
  const int first = kind == Kind::kRemembers ? 1 : kLater;
  if (faulty.runs < first) return false;
  char* const bytes = bytes_of(output);
  if (faulty.runs == first) {
    faulty.remembered.assign(bytes, bytes + size_of(output));
  } else {
    std::memcpy(bytes, faulty.remembered.data(), faulty.remembered.size());
  }
  return true;
}

/// A copy of everything that the strides of `tensor` reach.
AttnbenchTensor copy_of(const AttnbenchTensor* tensor, std::vector<char>& memory) {
  int64_t last = 0;
  for (int axis = 0; axis < tensor->ndim; ++axis) {
    last += (tensor->shape[axis] - 1) * tensor->strides[axis];
  }
  memory.assign(bytes_of(tensor), bytes_of(tensor) + (last + 1) * tensor->dtype.bits / 8);
  AttnbenchTensor copy = *tensor;
  copy.data = memory.data();
  return copy;
}

void remember_scores(Faulty& faulty) {
  faulty.query_tensor = copy_of(faulty.tensors->query, faulty.remembered_query);
  faulty.key_tensor = copy_of(faulty.tensors->key_cache, faulty.remembered_keys);
  faulty.own_tensors.query = &faulty.query_tensor;
  faulty.own_tensors.key_cache = &faulty.key_tensor;
}

/// A thread that goes on while attnbench writes poison between two samples would read wild page
/// numbers and end the process; so its page numbers and offsets are its own.
void own_indices(Faulty& faulty) {
  const AttnbenchTensors& t = *faulty.tensors;
  if (t.block_table != nullptr) {
    faulty.table_tensor = copy_of(t.block_table, faulty.own_table);
    faulty.own_tensors.block_table = &faulty.table_tensor;
  }
  faulty.starts_tensor = copy_of(t.query_start_loc, faulty.own_starts);
  faulty.own_tensors.query_start_loc = &faulty.starts_tensor;
}

/// Magnitudes of the first elements of query and values, which no change of signs changes.
std::vector<char> key_of(const AttnbenchTensors& t) {
  std::vector<char> key;
  for (const AttnbenchTensor* tensor : {t.query, t.value_cache}) {
    for (int64_t i = 0; i < 32; ++i) {
      const auto magnitude = static_cast<float>(std::fabs(load(tensor, i)));
      const auto* bytes = reinterpret_cast<const char*>(&magnitude);
      key.insert(key.end(), bytes, bytes + sizeof magnitude);
    }
  }
  return key;
}

bool is_poison(const AttnbenchTensor* tensor) {
  const char* bytes = static_cast<const char*>(tensor->data);
  return bytes[0] == '\xFF' && bytes[size_of(tensor) - 1] == '\xFF';
}

/// Computes into the output of the case, and takes what it holds there away again.
void compute_early(Faulty* faulty) {
  float last = 0;
  while (!faulty->ends) {
    const float now = load(faulty->tensors->query, 0);
    if (std::isnan(now) || now == last) continue;
    last = now;
    const std::lock_guard lock(faulty->mutex);
    naive().run(faulty->naive, nullptr);
    const AttnbenchTensor* output = faulty->tensors->output;
    faulty->early.assign(bytes_of(output), bytes_of(output) + size_of(output));
  }
}

/// [heads, rows], whose heads lie apart.
std::vector<float> take_lse(const AttnbenchTensor* lse) {
  std::vector<float> taken;
  for (int64_t h = 0; h < lse->shape[0]; ++h) {
    const float* head = static_cast<const float*>(lse->data) + h * lse->strides[0];
    taken.insert(taken.end(), head, head + lse->shape[1]);
  }
  return taken;
}

void put_lse(const AttnbenchTensor* lse, const std::vector<float>& taken) {
  for (int64_t h = 0; h < lse->shape[0]; ++h) {
    std::memcpy(static_cast<float*>(lse->data) + h * lse->strides[0],
                taken.data() + h * lse->shape[1],
                static_cast<std::size_t>(lse->shape[1]) * sizeof(float));
  }
}

/// What a variant does in place of a run, from a later run on; false: nothing.
bool cheats(Faulty& faulty, void* stream) {
  const AttnbenchTensors& t = *faulty.tensors;
  char* const output = bytes_of(t.output);
  const auto bytes = static_cast<std::size_t>(size_of(t.output));
  if (faulty.runs < kLater) return false;
  switch (faulty.variant.kind) {
    case Kind::kRemembersByKey: {
      const std::vector<char> key = key_of(t);
      if (key == faulty.key) {
        std::memcpy(output, faulty.remembered.data(), bytes);
        put_lse(t.lse, faulty.remembered_lse);
        return true;
      }
      naive().run(faulty.naive, stream);
      faulty.key = key;
      faulty.remembered.assign(output, output + bytes);
      faulty.remembered_lse = take_lse(t.lse);
      return true;
    }
    case Kind::kRemembersHalf:
      naive().run(faulty.naive, stream);
      if (faulty.remembered.empty()) faulty.remembered.assign(output, output + bytes);
      std::memcpy(output + bytes / 2, faulty.remembered.data() + bytes / 2, bytes - bytes / 2);
      return true;
    case Kind::kSkipsWhatIsThere:
      if (is_poison(t.output)) naive().run(faulty.naive, stream);
      return true;
    case Kind::kFinishesLater:
      if (faulty.thread.joinable()) faulty.thread.join();
      own_indices(faulty);
      faulty.thread = std::thread([&faulty] { naive().run(faulty.naive, nullptr); });
      return true;
    case Kind::kStartsEarlier: {
      if (!faulty.thread.joinable()) {
        naive().run(faulty.naive, stream);
        faulty.early.assign(output, output + bytes);
        own_indices(faulty);
        faulty.thread = std::thread(compute_early, &faulty);
        return true;
      }
      const std::unique_lock lock(faulty.mutex, std::try_to_lock);
      if (lock) std::memcpy(output, faulty.early.data(), bytes);
      return true;
    }
    default:
      return false;
  }
}

void leave_process() {
  constexpr unsigned kLongS = 1000;
  if (fork() == 0) {
    sleep(kLongS);
    _exit(0);
  }
}

const char* faulty_run(void* state, void* stream) {
  Faulty& faulty = *static_cast<Faulty*>(state);
  const AttnbenchTensors& t = *faulty.tensors;
  if (faulty.variant.kind == Kind::kSilent) return nullptr;
  if (cheats(faulty, stream)) return nullptr;
  if (faulty.variant.kind == Kind::kRemembersScores && faulty.runs == 0) remember_scores(faulty);
  if (faulty.variant.kind == Kind::kRemembersScoresLater && faulty.runs == kLater) {
    remember_scores(faulty);
  }
  if (const char* error = naive().run(faulty.naive, stream)) return error;
  convert_lse(faulty);
  ++faulty.runs;
  if (remembers(faulty)) return nullptr;
  const auto row_bytes = static_cast<std::size_t>(size_of(t.output) / t.output->shape[0]);
  const int64_t last = size_of(t.output) * 8 / t.output->dtype.bits - 1;
  switch (faulty.variant.kind) {
    case Kind::kWrong:
      store(t.output, last, load(t.output, last) + 0.05f);
      break;
    case Kind::kUnsteady:
      store(t.output, last, load(t.output, last) * (faulty.runs % 2 ? 1.0f : 1.01f));
      break;
    case Kind::kWritesPadding:
      bytes_of(t.output)[size_of(t.output)] = 0;
      break;
    case Kind::kOverrunOutput:
      std::memset(bytes_of(t.output) + size_of(t.output), 0, kTileRows * row_bytes);
      break;
    case Kind::kUnderrunLse:
      bytes_of(t.lse)[-1] = 0;
      break;
    case Kind::kOverrunWorkspace:
      faulty.workspace[kWorkspaceBytes] = 0;
      break;
    case Kind::kReadsPastSeqLens:
      faulty.runs += static_cast<volatile int32_t*>(t.seq_lens->data)[16] == 0;
      break;
    case Kind::kReadsBeforeQuery:
      faulty.runs += static_cast<volatile char*>(t.query->data)[-16] == 0;
      break;
    case Kind::kWritesCache:
      if (faulty.runs == 1) *bytes_of(t.key_cache) = static_cast<char>(*bytes_of(t.key_cache) ^ 1);
      break;
    case Kind::kWritesQuery:
      store(t.query, 1, load(t.query, 1) * 2.0f);
      break;
    case Kind::kWritesSeqLens:
      --static_cast<int32_t*>(t.seq_lens->data)[0];
      break;
    case Kind::kWritesQueryStartLoc:
      --static_cast<int32_t*>(t.query_start_loc->data)[t.query_start_loc->shape[0] - 1];
      break;
    case Kind::kAllocatesInRun:
      faulty.host->allocate(faulty.host, 8, "late memory");
      break;
    case Kind::kLeavesProcess:
      if (faulty.runs == 1) leave_process();
      break;
    case Kind::kLeavesProcessAndCrashes:
      leave_process();
      std::raise(SIGSEGV);
      break;
    case Kind::kPrints:
      std::puts("run() was here");
      break;
    case Kind::kHangs:
      spin();
    case Kind::kCrashes:
      std::raise(SIGSEGV);
      break;
    case Kind::kExits:
      std::exit(0);
    case Kind::kFails:
      return "the launch failed";
    case Kind::kThrows:
      throw std::runtime_error("no way");
    default:
      break;
  }
  return nullptr;
}

void faulty_destroy(void* state) {
  auto* faulty = static_cast<Faulty*>(state);
  const Kind kind = faulty->variant.kind;
  faulty->end_thread();
  naive().destroy(faulty->naive);
  delete faulty;
  if (kind == Kind::kThrowsInDestroy) throw std::runtime_error("no end");
}

}  // namespace

const AttnbenchBackend* attnbench_backend(uint32_t index) {
  constexpr std::size_t kCount = sizeof kVariants / sizeof kVariants[0];
  static AttnbenchBackend tables[kCount];
  if (index >= kCount) return nullptr;
  const Variant& variant = kVariants[index];
  AttnbenchBackend& table = tables[index];
  table = naive();
  table.name = variant.name;
  table.version = "0.1";
  table.description = "a variant of the example for tests";
  table.user = &variant;
  table.kv = variant.kv;
  table.nondeterministic = variant.nondeterministic;
  table.lse = variant.lse;
  table.empty_rows = variant.empty_rows;
  table.features &= variant.features;
  table.supports = faulty_supports;
  table.prepare = faulty_prepare;
  table.run = faulty_run;
  table.destroy = faulty_destroy;
  return &table;
}
