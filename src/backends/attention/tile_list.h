// A batch as a list of tiles for attend_tiles(): all requests in one launch, decodes and prefills
// mixed, or shared prefixes split over keys beside each request's own keys (§6.2). Which pipeline
// does so is for the device to say (Ops::tile_use); what the list is follows from the lengths of
// the batch alone.
//
// - Decodes and prefills: one part, attend_tiles() writes output and LSE. Steps: attend.
// - With shared prefixes: parts 0 and on are runs of each group's prefix, whose rows are the tokens
//   of all its requests; the last part is each request's own keys. attend_tiles() writes partial
//   results, combine_splits() puts them together, which is both the merge of §6.3 and that of the
//   runs. Steps: attend, combine.
//
// The list is of the lengths that the batch had when it was made: a graph of the steps may be
// replayed over other contents, not over other lengths.
#pragma once

#include "backends/device_buffers.h"
#include "core/problem/problem.h"
#include "metadata/parts/decode_choice.h"

#include "kernels/params_tiles.h"

namespace attnbench {

/// The arguments of attend_tiles(), and with more than one part of combine_splits() behind it.
struct TileSteps {
  attn::AttendParams params;
  attn::TileListParams list;
};

/// Whether a list can express the problem: keys in pages, rows that see one interval of them, and
/// no chunks of local attention, int8 levels, ranks, wanted splits or a wanted form of them.
bool takes_tiles(const Problem& problem);

/// The first `num_decodes` requests of a problem, and those behind them, for a device of `num_sms`
/// multiprocessors; of the problem's own memory.
ApartQuestion apart_question(const Problem& problem, const attn::AttendParams& params,
                             int num_decodes, int num_sms);

/// Whether the problem goes by a list: where the device always takes lists, or where one launch is
/// faster than others: shared prefixes that are attended apart (`cascade`), or decodes in front of
/// prefills, up to head sizes of 128, with a tile of a decode for every other multiprocessor, none
/// of which would end long after all others, since a list does not split the keys of a decode.
bool goes_by_tiles(const Problem& problem, const attn::AttendParams& params, bool cascade,
                   const Ops& ops);

/// Of a problem that takes_tiles(), and `params` for the whole of it on the device of `ops`. With
/// `cascade` its prefixes are parts of their own, [T, H, Dv] and LSE [H, T] in f32 each. List and
/// partial results are of `memory`. Errors: E-CAPACITY where there is no room for them; E-INTERNAL
/// as of deal_tiles().
TileSteps make_tile_steps(const Problem& problem, const attn::AttendParams& params, bool cascade,
                          const Ops& ops, DeviceBuffers& memory);

}  // namespace attnbench
