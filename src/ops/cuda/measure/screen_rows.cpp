#include "ops/cuda/measure/screen_rows.h"

#include <utility>

#include "ops/cuda/measure/screen.h"

namespace attnbench::cuda {
namespace {

template <typename T>
std::vector<T> copied(std::span<const T> values) {
  return {values.begin(), values.end()};
}

}  // namespace

ScreenKey::ScreenKey(const ScreenInputs& inputs)
    : query_(*inputs.query),
      key_(*inputs.key),
      value_(*inputs.value),
      key_index_(copied(inputs.key_index)),
      query_start_loc_(copied(inputs.query_start_loc)),
      seq_lens_(copied(inputs.seq_lens)),
      key_start_loc_(copied(inputs.key_start_loc)),
      visible_begin_(copied(inputs.visible_begin)),
      visible_end_(copied(inputs.visible_end)),
      softmax_scale_(inputs.softmax_scale),
      soft_cap_(inputs.soft_cap),
      alibi_(inputs.alibi),
      alibi_slopes_(copied(inputs.alibi_slopes)),
      sinks_(copied(inputs.sinks)) {}

const KeptRows* KeptRowsList::find(const ScreenKey& key) const {
  for (const KeptRows& rows : kept_) {
    if (rows.key == key) return &rows;
  }
  return nullptr;
}

void KeptRowsList::make_room(std::size_t bytes) {
  while (!kept_.empty() && size_bytes() + bytes > most_bytes_) kept_.pop_front();
}

const KeptRows& KeptRowsList::add(KeptRows rows) {
  make_room(rows.size_bytes());
  kept_.push_back(std::move(rows));
  return kept_.back();
}

void KeptRowsList::limit(std::size_t most_bytes) {
  kept_.clear();
  most_bytes_ = most_bytes;
}

std::size_t KeptRowsList::size_bytes() const {
  std::size_t bytes = 0;
  for (const KeptRows& rows : kept_) bytes += rows.size_bytes();
  return bytes;
}

}  // namespace attnbench::cuda
