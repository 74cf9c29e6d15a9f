// How long this process waited for cores that other programs had.
#pragma once

namespace attnbench {

/// Seconds that the threads of this process were ready to run and did not, since they started, as
/// the kernel counts them in /proc/self/task/*/schedstat; NaN where it does not.
double cpu_wait_s();

}  // namespace attnbench
