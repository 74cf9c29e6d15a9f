// Which tile of rows and keys a problem of the Hopper prefill kernel gets: tables by head size and
// type, each row with what was measured. hopper_plan.h makes the rest of the plan.
#pragma once

#include <cstdint>

#include "ops/cuda/attention/hopper_plan.h"

namespace attnbench::cuda {

/// Tiles up to a head size of keys and one of values; the first row that fits is taken.
struct TileChoice {
  int most_columns;    // D
  int most_v_columns;  // Dv
  int consumers;
  int tile_n;
  bool ping_pong;
  const char* reason;
  int stages = 2;
  int line = 0;             // attn::HopperTile
  bool persistent = false;  // and ahead where that can be: HopperPlan
  int sums = 0;             // HopperPlan, as the next
  bool fixed_base = false;
  bool apart = false;
  bool late_output = false;  // where it can be, of scores that nothing transforms
};

/// The tile of a problem; of `forms`, how scores are transformed, and whether a tile may be done
/// apart (e4m3).
const TileChoice& choose_tile(const attn::AttendParams& params, const HopperPlan& forms);

/// Whether rows may be blind to the last keys of a tile by more than their request's end.
bool is_causal(const attn::AttendParams& params);
/// Whether rows are blind to keys far before them.
bool has_window(const attn::AttendParams& params);
/// The most keys of a request, as far as the host knows; at least as many as rows, as a rule.
std::int64_t keys_of_request(const attn::AttendParams& params);
/// And that a row sees.
std::int64_t keys_of_row(const attn::AttendParams& params);
/// Heads of encoders whose columns fill no line have at most so many.
inline constexpr int kImageColumns = 80;

int operand_bytes(const attn::AttendParams& params);
/// Of scores and of weights and values.
bool has_e4m3_products(const attn::AttendParams& params);
/// Of scores alone: weights keep 16 bits (semantics §10.5).
bool has_wide_values(const attn::AttendParams& params);
/// Whether values of e4m3 products are several pieces of so many columns.
bool divides_columns(const attn::AttendParams& params, int columns);
/// Whether what transforms scores takes registers that a wide tile needs.
bool wants_registers(const HopperPlan& forms);

}  // namespace attnbench::cuda
