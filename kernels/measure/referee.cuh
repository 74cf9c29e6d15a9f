// Kernels of the referee beside those that it judges: they look through the guard zones of all
// buffers, and read the clocks of the device before and behind what is timed.
#pragma once

#include "kernels/params_measure.h"

namespace attn {

// ---- Guard zones. They are wide, so that a write far behind an output is seen, and are checked
// after every step: copying them to the host would take longer than what is checked.

/// Whether some of the bytes at `first`, `first` + `step`, ... differ. A zone may begin and end at
/// any byte; what lies between in whole words is read as such.
ATTN_FN bool zone_differs(const GuardedZone& zone, unsigned int word, i64 first, i64 step) {
  using Address = unsigned long long;
  const auto address = reinterpret_cast<Address>(zone.begin);
  const Address end = address + static_cast<Address>(zone.num_bytes);
  const Address first_word = (address + 3) / 4;
  const Address end_word = end / 4;
  bool differs = false;
  for (Address i = first_word + static_cast<Address>(first); i < end_word;
       i += static_cast<Address>(step)) {
    differs |= *reinterpret_cast<const unsigned int*>(4 * i) != word;
  }
  if (first != 0) return differs;
  for (Address i = address; i < end; ++i) {
    if (i == 4 * first_word && end_word > first_word) i = 4 * end_word;
    if (i >= end) break;
    differs |= *reinterpret_cast<const unsigned char*>(i) != ((word >> (8 * (i % 4))) & 0xFF);
  }
  return differs;
}

/// Config: int kThreads, int kCtas (that share the words of a zone). Grid: zones * kCtas.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) scan_zones(const ZoneScanParams params) {
  constexpr i64 kStep = i64{Config::kThreads} * Config::kCtas;
  const unsigned int zone = blockIdx.x / Config::kCtas;
  const i64 thread = i64{blockIdx.x % Config::kCtas} * Config::kThreads + threadIdx.x;
  if (zone_differs(params.zones[zone], params.word, thread, kStep)) params.broken[zone] = 1;
}

// ---- Clocks. Two readings of one multiprocessor give its clock rate between them: what a time
// measured in between was worth in cycles.

/// Config: nothing. Grid: a few CTAs of one thread for every multiprocessor; what the last of those
/// on one of them reads stays.
template <class Config>
__global__ void read_clocks(const ReadClocksParams params) {
  unsigned int sm;
  unsigned long long nanoseconds;
  unsigned long long cycles;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds)::"memory");
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  if (sm >= params.num_sms) return;
  // Why one store: halves of two CTAs would be no reading.
  asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(params.readings + sm), "l"(cycles),
               "l"(nanoseconds)
               : "memory");
}

}  // namespace attn
