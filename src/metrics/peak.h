// What the matrix units of a device can do in one cycle, by its architecture: with the clock that
// was observed during the samples, a ceiling that does not move with power and temperature.
//
// Published peaks divided by multiprocessors and boost clock, which gives a power of two each time:
//   8.0: A100 whitepaper, table 1: 312 TFLOP/s float16 and bfloat16, 624 TOP/s int8, 19.5 TFLOP/s
//        float32; 108 SMs at 1410 MHz. It has no fp8.
//   8.9: L40S data sheet: 362 TFLOP/s float16, 733 fp8 and int8, 91.6 float32; 142 SMs at 2520 MHz.
//        GeForce cards of 8.9 do half of it with float32 sums (Ada whitepaper, appendix A).
//   9.0: H100 whitepaper, table 2 (SXM5): 989.4 TFLOP/s float16, 1978.9 fp8 and int8 at 1830 MHz,
//        66.9 float32 at 1980 MHz; 132 SMs. H200 has the same multiprocessors.
//  10.0: HGX B200 data sheet: 2.25 PFLOP/s float16, 4.5 fp8 and int8 of one GPU; 148 SMs at
//        1850 MHz.
//
// The share of such a peak is of matrix products only, and of those that the problem needs: what a
// kernel spends on exponentials, masks and moving bytes shows as what is missing to 100 %. Kernels
// of which memory is the bound have a small share by nature; theirs is the roofline's
// (metrics/throughput.h).
#pragma once

namespace attnbench {

/// What products are made of.
enum class PeakType {
  kF32,   // not rounded to tf32: matrix units do none of these
  kF16,   // float16 and bfloat16, with float32 sums
  kE4M3,  // and e5m2
  kI8,
};

/// Floating-point (or integer) operations of a multiprocessor in one cycle, an FMA counted as two,
/// dense (sparsity doubles what data sheets say and helps no attention); 0 where the architecture
/// `sm` (10 * major + minor) is not in the table.
int operations_per_cycle(int sm, PeakType type);

/// Share of the peak in percent: `flops` in `cycles` of a device whose multiprocessors do
/// `per_cycle` together. `flops` are those that the problem needs (compute_throughput()), so that a
/// kernel that computes masked pairs gets no credit for it. NaN where one of them is not known.
double peak_share(double flops, double cycles, double per_cycle);

}  // namespace attnbench
