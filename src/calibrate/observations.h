// What scales are calibrated from: forwards of layers, one layer's tensors in memory at a time.
// They are drawn from a scenario's seed (here), or lie in files (tensor_observations.h).
//
// An Observation may know the attention over its tensors, so that scales can be judged by their
// error in it; where it does not, it says why, and scales are made all the same.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/files/scale_file.h"
#include "metadata/mask/kernel_rules.h"

namespace attnbench {

/// In this order everywhere.
enum Role : std::size_t { kQueryRole = 0, kKeyRole = 1, kValueRole = 2 };
inline constexpr std::size_t kNumRoles = 3;
inline constexpr std::array<const char*, kNumRoles> kRoleNames{"q", "k", "v"};

/// Roles that a file of this format has scales for.
std::vector<Role> scaled_roles(ScaleFormat format);

/// What the decode of latent attention has beside q and k (latents.h).
struct LatentLayer {
  std::int64_t kv_lora_rank = 0;
  Tensor query;         // [T, N, P + R], or empty: then there is no attention
  Tensor w_uk;          // [N, P, Lkv]; likewise
  Tensor w_uv;          // [N, Lkv, V]; likewise
  Tensor topk_indices;  // i32 [T, topk], or empty
};

/// One forward of one layer.
struct Observation {
  std::string where;                             // the file, for messages
  std::array<std::optional<Tensor>, 3> tensors;  // those that there are
  /// Attention over them: heads, mask and scale, and the batch. Only where no_attention is empty;
  /// then they are [T, H, D], [S, Hk, D] and [S, Hk, Dv].
  Problem problem;
  /// Of latent attention, whose q is [T, N, Lkv + R] and k [S, 1, Lkv + R]; there is no v.
  std::optional<LatentLayer> latents;
  KernelRules rules;                // of the backend that computed it: windows and slopes differ
  std::vector<float> sinks;         // [H] or empty
  std::vector<float> alibi_slopes;  // [H] or empty
  std::string no_attention;         // why not: "tensors of rank 2"
};

/// The rules of a backend that a file or a scenario names; nothing for an unknown name.
using FindRules = std::function<std::optional<KernelRules>(const std::string& name)>;

class Observations {
 public:
  virtual ~Observations() = default;
  /// In natural order.
  virtual const std::vector<std::string>& layers() const = 0;
  virtual std::int64_t count(std::size_t layer) const = 0;
  /// Whether it is one of latent attention. Then there are scales of q and k, and that of v is k's.
  virtual bool has_latents(std::size_t layer) const {
    static_cast<void>(layer);
    return false;
  }
  /// The whole forward; nothing of it is kept. Errors: E-IO, E-DTYPE, E-SHAPE, E-VALUE, naming the
  /// layer and the tensor.
  virtual Observation read(std::size_t layer, std::int64_t index) = 0;
  /// What was left out, one sentence each.
  virtual std::vector<std::string> notices() const { return {}; }
};

/// Seeded forwards of the cases of a scenario, as the dynamic scales of `run` observe them: forward
/// f of `num_forwards` (at least one a case) is of case f modulo their number. The last forward of
/// the first layer in each case has the tensors of the case itself. Errors: E-CONFIG for type op,
/// and for a format that has no scales of latents with type mla, E-VALUE for a case of one backend
/// that is unknown, E-SHAPE for cases of different heads.
std::unique_ptr<Observations> scenario_observations(std::vector<Problem> cases, ScaleFormat format,
                                                    std::vector<std::string> layers,
                                                    std::int64_t num_forwards,
                                                    const FindRules& find_rules);

/// Errors: E-CONFIG for a format that has no scales of latents; `where` begins the message.
void check_latent_format(const std::string& where, ScaleFormat format);

/// Names of --layers: each as it is, or a template "visual.blocks.{}.attn.attn:32" of that many.
/// Errors: kUsage for a template without number, E-VALUE for a name given twice.
std::vector<std::string> expand_layers(const std::vector<std::string>& names);

/// "model.layers.0.self_attn": what a layer of a decoder is called that has no name.
inline constexpr const char* kUnnamedLayer = "model.layers.0.self_attn";

}  // namespace attnbench
