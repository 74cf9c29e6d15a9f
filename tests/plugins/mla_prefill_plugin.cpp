// Prefills of MLA over expanded heads on one CPU thread, for tests: right ones, and ones with a
// fault on purpose. bfloat16.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "attnbench_backend.h"
#include "variant_tables.h"

namespace {

enum class Kind {
  kRight,
  kPlusInf,            // the LSE of rows without a key, and says so
  kIgnoresCausality,   // among the new tokens
  kSkipsContext,       // writes nothing for chunks of the context
  kForgetsLseOfChunk,  // 0 for chunks of the context
  kBase2,              // LSEs, and says natural
  kRemembers,          // the output of its first run of each call
  kRemembersLater,     // the same of its sixth
  kWritesQuery,
  kWritesLengths,
  kOneState,  // keeps the tensors of the last prepare() for all calls
};

struct Variant {
  const char* name;
  Kind kind = Kind::kRight;
  uint64_t features = ATTNBENCH_CAUSAL | ATTNBENCH_NON_CAUSAL | ATTNBENCH_V_HEAD_SIZE;
};

constexpr Variant kVariants[] = {
    {"RIGHT"},
    {"PLUS_INF", Kind::kPlusInf},
    {"ONLY_CAUSAL", Kind::kRight, ATTNBENCH_CAUSAL | ATTNBENCH_V_HEAD_SIZE},
    {"IGNORES_CAUSALITY", Kind::kIgnoresCausality},
    {"SKIPS_CONTEXT", Kind::kSkipsContext},
    {"FORGETS_LSE_OF_CHUNK", Kind::kForgetsLseOfChunk},
    {"BASE_2", Kind::kBase2},
    {"REMEMBERS", Kind::kRemembers},
    {"REMEMBERS_LATER", Kind::kRemembersLater},
    {"WRITES_QUERY", Kind::kWritesQuery},
    {"WRITES_LENGTHS", Kind::kWritesLengths},
    {"ONE_STATE", Kind::kOneState},
};

struct Work {
  Kind kind;
  const AttnbenchProblem* problem;
  const AttnbenchTensors* tensors;
  std::vector<uint16_t> remembered;
  int runs = 0;
};

float load(const AttnbenchTensor* tensor, int64_t index) {
  const uint32_t bits = uint32_t{static_cast<const uint16_t*>(tensor->data)[index]} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void store(const AttnbenchTensor* tensor, int64_t index, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits += 0x7FFF + (bits >> 16 & 1);  // to nearest even
  static_cast<uint16_t*>(tensor->data)[index] = static_cast<uint16_t>(bits >> 16);
}

/// Row (token, head) over keys [first, first + count).
void attend_row(const Work& work, int64_t token, int64_t head, int64_t first, int64_t count) {
  const AttnbenchTensors& t = *work.tensors;
  const AttnbenchProblem& p = *work.problem;
  const bool is_context = p.causal == 0;
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> scores(static_cast<size_t>(count));
  std::vector<float> sums(static_cast<size_t>(p.v_head_size));
  const int64_t query = token * t.query->strides[0] + head * t.query->strides[1];
  float most = -infinity;
  for (int64_t j = 0; j < count; ++j) {
    const int64_t key = (first + j) * t.key->strides[0] + head * t.key->strides[1];
    float score = 0;
    for (int64_t d = 0; d < p.head_size; ++d)
      score += load(t.query, query + d) * load(t.key, key + d);
    scores[static_cast<size_t>(j)] = score * static_cast<float>(p.scale);
    most = std::max(most, scores[static_cast<size_t>(j)]);
  }
  float total = 0;
  for (int64_t j = 0; j < count; ++j) {
    const float weight = std::exp(scores[static_cast<size_t>(j)] - most);
    const int64_t value = (first + j) * t.value->strides[0] + head * t.value->strides[1];
    total += weight;
    for (int64_t d = 0; d < p.v_head_size; ++d) {
      sums[static_cast<size_t>(d)] += weight * load(t.value, value + d);
    }
  }
  const int64_t output = token * t.output->strides[0] + head * t.output->strides[1];
  for (int64_t d = 0; d < p.v_head_size; ++d) {
    store(t.output, output + d, count == 0 ? 0.0f : sums[static_cast<size_t>(d)] / total);
  }
  float lse =
      count == 0 ? (work.kind == Kind::kPlusInf ? infinity : -infinity) : most + std::log(total);
  if (work.kind == Kind::kBase2) lse /= std::log(2.0f);
  if (is_context && work.kind == Kind::kForgetsLseOfChunk) lse = 0;
  static_cast<float*>(t.lse->data)[head * t.lse->strides[0] + token * t.lse->strides[1]] = lse;
}

void attend(const Work& work) {
  const AttnbenchTensors& t = *work.tensors;
  const AttnbenchProblem& p = *work.problem;
  const int32_t* rows = static_cast<const int32_t*>(t.query_start_loc->data);
  const int32_t* lens = static_cast<const int32_t*>(t.seq_lens->data);
  const int64_t* keys = static_cast<const int64_t*>(t.key_start_loc->data);
  const bool causal = p.causal != 0 && work.kind != Kind::kIgnoresCausality;
  for (int64_t b = 0; b < p.num_requests; ++b) {
    for (int64_t row = rows[b]; row < rows[b + 1]; ++row) {
      const int64_t seen = causal ? lens[b] - (rows[b + 1] - row) + 1 : lens[b];
      for (int64_t head = 0; head < p.num_heads; ++head) attend_row(work, row, head, keys[b], seen);
    }
  }
}

/// All of the output, in one piece.
std::vector<uint16_t> output_of(const Work& work) {
  const AttnbenchTensor* output = work.tensors->output;
  const auto* data = static_cast<const uint16_t*>(output->data);
  return {data, data + output->shape[0] * output->strides[0]};
}

Work* last = nullptr;  // of kOneState

const char* prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                    const AttnbenchTensors* tensors, const AttnbenchHost*, void** state) {
  if (problem->type != ATTNBENCH_MLA_PREFILL) return "this is no prefill";
  if (problem->head_size != problem->qk_nope_head_dim + problem->qk_rope_head_dim) {
    return "the heads have another size";
  }
  if (!std::isnan(load(tensors->query, 0))) return "the query is there already";
  auto* work = new Work{static_cast<const Variant*>(self->user)->kind, problem, tensors, {}, 0};
  last = work;
  *state = work;
  return nullptr;
}

const char* run(void* state, void*) {
  Work& own = *static_cast<Work*>(state);
  Work& work = own.kind == Kind::kOneState ? *last : own;
  const AttnbenchTensors& t = *work.tensors;
  if (work.kind == Kind::kSkipsContext && work.problem->causal == 0) return nullptr;
  if (!work.remembered.empty()) {
    std::memcpy(t.output->data, work.remembered.data(), work.remembered.size() * sizeof(uint16_t));
  } else {
    attend(work);
  }
  if ((work.kind == Kind::kRemembers && work.runs == 0) ||
      (work.kind == Kind::kRemembersLater && work.runs == 5)) {
    work.remembered = output_of(work);
  }
  if (work.kind == Kind::kWritesQuery) static_cast<uint16_t*>(t.query->data)[1] ^= 1;
  if (work.kind == Kind::kWritesLengths && work.runs == 0) {
    static_cast<int32_t*>(t.seq_lens->data)[0] += 1;
  }
  ++work.runs;
  return nullptr;
}

void destroy(void* state) { delete static_cast<Work*>(state); }

}  // namespace

const AttnbenchBackend* attnbench_backend(uint32_t index) {
  AttnbenchBackend* const of_variant = variant_table(kVariants, index);
  if (of_variant == nullptr) return nullptr;
  const Variant& variant = kVariants[index];
  AttnbenchBackend& table = *of_variant;
  table.description = "prefills of MLA for tests";
  table.attention_types = ATTNBENCH_MLA_PREFILL;
  table.dtypes = ATTNBENCH_BFLOAT16;
  table.lse = ATTNBENCH_LSE_NATURAL;
  table.empty_rows =
      variant.kind == Kind::kPlusInf ? ATTNBENCH_EMPTY_PLUS_INF : ATTNBENCH_EMPTY_MINUS_INF;
  table.features = variant.features;
  table.prepare = prepare;
  table.run = run;
  table.destroy = destroy;
  return &table;
}
