// What a step of decode context parallelism costs, as a function of sizes and of a few measured
// numbers (docs/dcp-model.md): for predictions where there are no such ranks, and to say what a
// measured step is made of.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/problem/problem.h"

namespace attnbench {

/// Bytes that each rank receives from the others in one step.
struct DcpMessages {
  double query = 0;   // all-gather of the query heads
  double lse = 0;     // all-gather of the LSEs; 0 for a2a, where they travel with the outputs
  double output = 0;  // reduce-scatter, all-reduce or all-to-all of the partial outputs

  double total() const { return query + lse + output; }
  /// Messages, each of which costs a latency.
  int count() const { return lse > 0 ? 3 : 2; }
};

/// Of one step of the problem's kind of attention; a prefill of MLA gathers its context instead.
DcpMessages dcp_messages(const Problem& problem);

/// One exchange of `tokens` rows of the query: partial outputs of `width` float32 elements a head,
/// query heads of `head_size` elements in attention.dtype. All 0 for one rank.
DcpMessages dcp_messages(const Problem& problem, std::int64_t tokens, int head_size, int width);

/// A connection between ranks, and a device.
struct DcpLink {
  double latency_us = 0;  // of a message, however short
  double gbps = 0;        // that a rank receives, 1e9 bytes/s
};

/// Of NCCL in a graph between H200s, by measurements of single collectives, and a network of
/// 400 Gbit/s a GPU, whose numbers are assumed.
inline constexpr DcpLink kNvLink{10, 200};
inline constexpr DcpLink kNetwork{25, 50};

/// Microseconds of a step's exchanges over the link.
double dcp_exchange_us(const DcpMessages& messages, const DcpLink& link);

/// Of them the all-gather of the query, which dcp.overlap puts beside attention over the new
/// tokens.
double dcp_gather_us(const DcpMessages& messages, const DcpLink& link);

/// A device that is a rank. What it attends to takes the longer one of reading its keys and
/// computing; `step_us` and `mla_step_us` are what else a step has, however few its keys: the cache
/// write, starts and ends of kernels, the combination of splits, of MLA also its projections. What
/// there is more over ranks: correction, new tokens, merge; of MLA, whose outputs are several times
/// as large, correction and rounding.
struct DcpDevice {
  double gbps = 0;         // 1e9 bytes/s of keys
  double tflops = 0;       // 1e12 operations/s of MLA's decodes
  double step_us = 0;      // of a step
  double mla_step_us = 0;  // of MLA's
  double rank_us = 0;      // more of a step over ranks
  double mla_rank_us = 0;  // of MLA's
};

/// An H200, by the steps of docs/dcp-model.md.
inline constexpr DcpDevice kH200Rank{4450, 600, 25, 60, 17, 42};
/// Most ranks that are taken to be joined by NVLink.
inline constexpr int kMostNvLinkRanks = 8;

/// Microseconds of a step of the problem over `world_size` ranks, predicted: the context of the
/// slowest rank on `device`, its other kernels, and the exchanges.
double dcp_step_us(const Problem& problem, int world_size, const DcpDevice& device,
                   const DcpLink& link);

/// A step of a pipeline over simulated ranks, which run in turn: its time is that of all of them.
struct DcpStep {
  std::string_view name;
  double us = 0;
};

/// Microseconds that the slowest of real ranks would take for the steps, predicted: of a step that
/// reads the ranks' own keys its share of them, of the others one part of world_size, and in the
/// place of what the exchanges cost on one device dcp_exchange_us() over `link`, or of a gathered
/// context of MLA what a rank receives of it. With dcp.overlap the longer one of attend_new and the
/// gather of the query counts. NaN for one rank.
double dcp_critical_path_us(const Problem& problem, std::span<const DcpStep> steps,
                            const DcpLink& link);

}  // namespace attnbench
