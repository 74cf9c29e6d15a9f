// Ceilings measured where a user's code cannot reach.
//
// A library that is loaded into a process may replace its clock, slow its threads down or keep its
// cores busy, and so move the ceilings that its own time is held against. So the process that
// measures them is made before any library is loaded, and waits to be told: a ceiling that seems
// too low, because other programs had the cores, can be measured again there.
#pragma once

#include <sys/types.h>

#include <functional>

#include "measure/cpu_measure.h"

namespace attnbench {

class CeilingMeter {
 public:
  /// Forks; `measure` runs in the child, once for every call of measure(). For a process that has
  /// neither loaded a user's library nor touched a CUDA device. Errors: E-INTERNAL when the system
  /// refuses a pipe or a process.
  explicit CeilingMeter(const std::function<CpuCeilings()>& measure);
  /// Ends the child.
  ~CeilingMeter();
  CeilingMeter(const CeilingMeter&) = delete;
  CeilingMeter& operator=(const CeilingMeter&) = delete;

  /// Waits for a measurement; the best of it and those before. Children of this process may call it
  /// too, one at a time. Zeros, which allow any time, when the measuring process is gone.
  CpuCeilings measure();

 private:
  /// Only this process ends the child: a fork of it has the pipes, and may go at any time.
  pid_t owner_ = -1;
  pid_t pid_ = -1;
  int requests_ = -1;
  int answers_ = -1;
};

}  // namespace attnbench
