// Rows of float64 attention that stay on the device: backends of a case read the same tensors by
// the same maths, and the next output is compared with what was computed for the first one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "kernels/params.h"
#include "ops/ops.h"

namespace attnbench::cuda {

struct ScreenInputs;

/// All that rows of attention depend on. Small things are compared by value. Tensors are known by
/// where their bytes are, by type and by shape: those of a Screen stay as they are as long as it
/// lives, so no other ones can come to lie there.
class ScreenKey {
 public:
  explicit ScreenKey(const ScreenInputs& inputs);
  bool operator==(const ScreenKey&) const = default;

 private:
  struct Place {
    explicit Place(const Tensor& tensor)
        : bytes(tensor.bytes()), dtype(tensor.dtype()), shape(tensor.shape()) {}
    bool operator==(const Place&) const = default;

    const void* bytes;
    Dtype dtype;
    std::vector<std::int64_t> shape;
  };

  Place query_;
  Place key_;
  Place value_;
  std::vector<std::int32_t> key_index_;
  std::vector<std::int32_t> query_start_loc_;
  std::vector<std::int32_t> seq_lens_;
  std::vector<std::int64_t> key_start_loc_;
  std::vector<std::int32_t> visible_begin_;
  std::vector<std::int32_t> visible_end_;
  double softmax_scale_;
  double soft_cap_;
  attn::Alibi alibi_;
  std::vector<float> alibi_slopes_;
  std::vector<float> sinks_;
};

struct KeptRows {
  ScreenKey key;
  std::unique_ptr<Buffer> rows;   // double [T, H, Dv]
  std::unique_ptr<Buffer> sizes;  // attn::ScreenRecord [T, H, chunks]: LSE and spread of them

  std::size_t size_bytes() const { return rows->size_bytes() + sizes->size_bytes(); }
};

/// Those that were kept last, in bounded memory.
class KeptRowsList {
 public:
  explicit KeptRowsList(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  bool has_room_for(std::size_t bytes) const { return bytes <= most_bytes_; }
  /// Null where there are none.
  const KeptRows* find(const ScreenKey& key) const;
  /// Forgets the oldest ones until so many bytes fit beside the others.
  void make_room(std::size_t bytes);
  /// What is given back stays until the next call of one of these.
  const KeptRows& add(KeptRows rows);
  void clear() { kept_.clear(); }
  /// Forgets all of them, and keeps no more than this from now on.
  void limit(std::size_t most_bytes);

  std::size_t size_bytes() const;

 private:
  std::deque<KeptRows> kept_;  // the oldest first
  std::size_t most_bytes_;
};

}  // namespace attnbench::cuda
