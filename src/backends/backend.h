// A backend: what it supports, in the words of semantics §13, and its pipeline over Ops.
//
// This is the line between what is compared and who compares. Above it (bench, calibrate, cli)
// nobody knows a backend by name: what its kernels do in their own way it states as KernelRules,
// and the reference follows them. Below it every backend prepares a Pipeline once per case and is
// then driven only through steps(), poison_outputs() and read_output().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/assumed_device.h"
#include "core/numbers/lse_convention.h"
#include "core/problem/problem.h"
#include "core/step.h"
#include "core/tensor.h"
#include "inputs/cache/mla_cache.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "inputs/mla_inputs.h"
#include "inputs/mm_inputs.h"
#include "metadata/blocks.h"
#include "metadata/mask/attention_math.h"
#include "ops/ops.h"

namespace attnbench {

/// What a transport of real ranks has to offer to a group (dcp.transport).
struct RealRanks {
  std::string missing;  // why it has no ranks; empty = it has
  int count = 0;
};

/// Facts of the device that support is judged by and work is divided by; on the CPU those of the
/// device that is assumed.
struct DeviceFacts {
  int sm = kAssumedSm;  // 10 * major + minor
  int num_sms = kAssumedNumSms;
  bool is_cuda = false;
  RealRanks nccl = {"NCCL not found"};
  RealRanks mpi = {"attnbench was not started by mpirun or srun"};
};

struct PipelineOutput {
  Tensor output;              // [T, H, Dv] attention dtype (or quantised bytes)
  std::optional<Tensor> lse;  // f32 [H, T] when the pipeline produces it
  /// How the LSE was written before it became ours; nothing for backends that write it our way.
  std::optional<LseConvention> declared_lse;
  std::optional<Tensor> cache;            // the cache after the step, as PagedCache::data
  std::optional<Tensor> key_scale_cache;  // after the step, as PagedCache::key_scale_cache
  /// Further results under the names they are saved by ("output_scales", ...).
  std::vector<std::pair<std::string, Tensor>> more;
  std::string defect;  // what the run broke besides values ("row 67 ... was written"), or empty
};

/// One line of `attnbench explain`: what the pipeline will do, e.g. {"num_decodes", "60"}.
using Facts = std::vector<std::pair<std::string, std::string>>;

class UsersPipeline;
struct SampleSide;

/// Prepared work on one device. Buffers live as long as the pipeline.
class Pipeline {
 public:
  virtual ~Pipeline() = default;
  /// Queued in this order by one run; running them all again gives the same bytes (§18.2).
  virtual const std::vector<Step>& steps() const = 0;
  /// Poisons output, LSE and workspaces, so that an unwritten element shows.
  virtual void poison_outputs() = 0;
  /// `with_cache` false leaves PipelineOutput::cache empty: a cache takes long to copy.
  virtual PipelineOutput read_output(bool with_cache = true) = 0;
  /// Of a pipeline with a user's kernel in it, what the checks of such kernels need; else null.
  virtual UsersPipeline* users() { return nullptr; }
  /// What timed samples are checked by; nothing for pipelines whose samples are not. Called when
  /// inputs are as they were given.
  virtual std::optional<SampleSide> sample_side();
  /// Lines of Backend::explain() that the operations decide on which it was prepared; each stands
  /// in the place of the backend's of that name.
  virtual Facts facts() const { return {}; }
};

struct RankSeat;
struct MlaCapability;
struct MlaInputs;
struct MlaCache;
struct MlaReferenceInputs;
struct OpInputs;

/// What a pipeline starts from; built once per case and backend by bench.
struct BackendInputs {
  /// Which rank of a DCP group the pipeline is; null = all of them in turn. With it the cache and
  /// slot mapping are those of this rank, [1, ...].
  const RankSeat* seat = nullptr;
  // One of three groups is set, by attention.type; pointers are borrowed from the case.
  const AttentionInputs* inputs = nullptr;
  StoredQuery query;
  const StoredKv* stored = nullptr;                // decoder and encoder_decoder
  std::optional<PagedCache> cache;                 // decoder and encoder_decoder
  const MlaInputs* mla = nullptr;                  // mla, instead of all above
  const MlaCache* mla_cache = nullptr;             // mla
  const MlaCache* mla_extra_cache = nullptr;       // mla with a second cache
  const MlaReferenceInputs* mla_values = nullptr;  // mla: what the reference reads
  const MmInputs* mm = nullptr;                    // mm_encoder; `inputs` are its tensors
  const OpInputs* op = nullptr;                    // op, instead of all above
};

/// What the library of a user's backend said when it could not go on; a case ends as "error".
class BackendFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The base of all backends: native ones, REFERENCE, vendors' and users'. Its answers depend on the
/// arguments only, so they may be had in any order and as often as wanted. Whoever adds a virtual
/// function adds it to ForwardingBackend too, which passes every one on.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view description() const = 0;
  /// Native backends of a type run by default; REFERENCE, CUDNN and users' only when named.
  virtual bool is_default_for(AttentionType type) const = 0;
  /// The same of one problem: a backend that is for one kind of cache only runs by default where
  /// there is one, and does not appear in every other case.
  virtual bool runs_by_default(const Problem& problem) const {
    return is_default_for(problem.attention.type);
  }
  /// All reasons against the problem, in the order and words of §13; empty = supported.
  virtual std::vector<std::string> refusals(const Problem& problem,
                                            const DeviceFacts& device) const = 0;
  /// What its kernels decide in their own way; the reference that judges them follows.
  virtual KernelRules kernel_rules() const = 0;
  /// Whether its saved tensors state the rules (save.h). Not so where readers know them by the
  /// backend's name, or by its being a user's.
  virtual bool states_rules() const { return true; }
  /// Cache layout of the backend; nothing for backends without a paged cache.
  virtual std::optional<CacheLayoutKind> cache_layout() const = 0;
  /// The same for one problem: where it takes keys as tensors instead, nothing.
  virtual std::optional<CacheLayoutKind> cache_layout_for(const Problem& problem) const {
    static_cast<void>(problem);
    return cache_layout();
  }
  /// Sizes of the pages that its kernels take (semantics §13.2, §13.3); empty for backends without
  /// pages, or that do not say.
  virtual std::vector<BlockSizeRule> block_sizes() const { return {}; }
  /// Whether two runs give the same bytes (§18.2). Those of a vendor's or user's kernels that do
  /// not, and say so, are judged by their errors only.
  virtual bool is_deterministic(const Problem& problem) const {
    static_cast<void>(problem);
    return true;
  }
  /// Element type that the kernel rounds P to (for err_ratio), given the problem.
  virtual Dtype probability_dtype(const Problem& problem) const = 0;
  /// `inputs` (and what it points to) and `ops` must outlive the pipeline.
  virtual std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                            Ops& ops) const = 0;
  /// `device`: the one that it would be done on.
  virtual Facts explain(const Problem& problem, const DeviceFacts& device) const = 0;
  /// Whether its attention is done by operations of Ops, which choose among this program's kernels.
  virtual bool chooses_kernels() const { return true; }
  /// The attention kernel that it is held to (forced_kernel.h); empty = the first that fits.
  virtual std::string_view forced_kernel() const { return {}; }
  /// The same backend without that.
  virtual const Backend& unforced() const { return *this; }
  /// The library of a user's backend, or of a vendor's; null for those of this program.
  virtual const PluginInfo* plugin() const { return nullptr; }
  /// Whether it is a user's, whose code may crash or hang at any call.
  virtual bool is_users() const { return plugin() != nullptr; }
  /// Loads the code of a user's backend into this process, which otherwise the first call that
  /// needs it does. Errors: as of that call.
  virtual void load() const {}
  /// How it takes part in a case of attention.type mla; null for backends that do not, and for
  /// one that reads what others dequantised (KernelRules).
  virtual const MlaCapability* mla_capability(const Problem& problem) const {
    static_cast<void>(problem);
    return nullptr;
  }
};

/// What a backend that takes the problem rounds P to: e4m3 where the problem says so (refused by
/// every backend whose queries, keys and values are not e4m3 too), else attention.dtype or wider.
inline Dtype probability_dtype_of(const Problem& problem) {
  const bool e4m3 = problem.attention.probability_dtype == ProbabilityDtype::kFp8E4M3;
  return e4m3 ? Dtype::kE4M3 : problem.attention.dtype;
}
constexpr const char* kProbabilityRefusal = "e4m3 P without fp8 query, key and value";
constexpr const char* kFastSumsRefusal = "fast fp8 sums without e4m3 P";

/// What results of the backend are named by: its name, and the kernel that it is held to
/// ("FLASH_ATTN@prefill").
std::string full_name(const Backend& backend);

/// Every backend, in the order of contract section 2.
const std::vector<const Backend*>& all_backends();
/// Null when there is no such backend.
const Backend* find_backend(std::string_view name);
/// The rules of a backend that a file or a scenario names; nothing when there is none of that name.
std::optional<KernelRules> find_kernel_rules(std::string_view name);

}  // namespace attnbench
