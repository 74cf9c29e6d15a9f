// How long this process waited for cores that other programs had.
//
// On a shared machine a sample may be long because of its neighbours. The kernel counts how long
// each thread was ready and not running; the gate leaves such samples out, or calls a gap doubtful
// that waiting explains. Waiting for a thread of this same process is not other programs' doing,
// which is what held_up_us() takes apart. Where the kernel does not count (no schedstat), times are
// simply believed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>

namespace attnbench {

/// By thread id, in nanoseconds.
using ThreadWaits = std::map<int, std::int64_t>;

/// How long each thread of this process was ready to run and did not, since it started, as the
/// kernel counts it in /proc/self/task/*/schedstat; empty where it does not. Threads that have
/// ended are missing.
ThreadWaits thread_waits();

/// The largest growth of a thread's waiting, in microseconds; NaN when either is empty. Why the
/// largest: a loop over several threads ends with the last of them. A sum over many threads would
/// call a few microseconds of each a long wait.
double longest_wait_us(const ThreadWaits& before, const ThreadWaits& after);

/// CPU time of all threads of this process since it started, in microseconds.
double process_cpu_us();

/// Of a wait during a time, what other programs may have had: not more than this process left of
/// its cores. Threads that wait for each other leave nothing.
double held_up_us(double longest_wait_us, double elapsed_us, double ran_us, double cores);

/// Cores that this process may use at a time, by its affinity mask and the CPU quotas of its
/// control groups; a quota of 150 % is 1.5. `root` is where /proc and /sys are looked for.
double usable_cores(const std::filesystem::path& root = "/");

}  // namespace attnbench
