// Shared memory of kernels/attention/general.cuh: known to the host, which chooses by it how many
// rows and keys a tile may have on the target, and requests that much at the launch.
#pragma once

#include "kernels/common/platform.cuh"

namespace attn {

/// Offsets and pitches in bytes.
struct GeneralLayout {
  int query;   // [rows] of query_pitch
  int key;     // [keys] of key_pitch
  int value;   // [keys] of value_pitch; the key tile itself when the values are its first columns
  int scores;  // f32 [rows] of score_pitch
  int probabilities;  // [rows] of probability_pitch
  int key_pitch;      // of queries too
  int value_pitch;
  int score_pitch;
  int probability_pitch;
  int total;
};

/// Bytes between rows of operands: whole 64 bytes, the step of the products along a row, and 16
/// more. An odd number of 16 bytes puts the eight rows that ldmatrix reads at once in different
/// banks.
ATTN_FN constexpr int general_pitch(int bytes) { return (bytes + 63) / 64 * 64 + 16; }

/// Queries, keys, values, S and P of one tile, one behind the other. `key_bytes`, `value_bytes`: of
/// an operand element of the first and of the second product. `value_in_key`: the values are the
/// first columns of the keys (MLA) and have no room of their own.
ATTN_FN constexpr GeneralLayout general_layout(int rows, int keys, int head_size, int v_head_size,
                                               int key_bytes, int value_bytes, bool value_in_key) {
  GeneralLayout layout{};
  layout.key_pitch = general_pitch(head_size * key_bytes);
  layout.value_pitch = value_in_key ? layout.key_pitch : general_pitch(v_head_size * value_bytes);
  layout.score_pitch = keys * 4 + 16;
  layout.probability_pitch = keys * value_bytes + 16;
  layout.query = 0;
  layout.key = rows * layout.key_pitch;
  const int past_keys = layout.key + keys * layout.key_pitch;
  layout.value = value_in_key ? layout.key : past_keys;
  layout.scores = value_in_key ? past_keys : past_keys + keys * layout.value_pitch;
  layout.probabilities = layout.scores + rows * layout.score_pitch;
  layout.total = layout.probabilities + rows * layout.probability_pitch;
  return layout;
}

}  // namespace attn
