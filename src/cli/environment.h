// Where and when a run happened: the head of a result file.
//
// Results of different programs, machines or devices must not be compared by time. What makes a
// machine another one is hashed into Environment::fingerprint: the processor, the compiler, the
// device, and neither host name nor date, since a container gets a new name at every start. A
// change of what goes into it makes every stored baseline one of another machine, so it needs a
// reason.
#pragma once

#include <string>
#include <vector>

#include "core/result/result.h"
#include "gpu/runtime.h"

namespace attnbench {

/// Version of the program, "0.1.0", as CMakeLists.txt has it: one text for --version, result files
/// and the package.
const char* tool_version();

/// Commit that it was built from, since two builds of one version may differ; "-dirty" behind when
/// files were modified; "unknown" without git.
const char* git_commit();

/// The vector extensions that this binary was compiled to use, e.g. "avx2 fma avx512f": not those
/// of the processor, since kernels on the CPU run with what the compiler was allowed. They go into
/// the fingerprint with the compiler.
std::string vector_extensions();

/// Everything that is known without a device: tool, host, processor, compiler. `created` is now, in
/// UTC; `command` is argv, kept so that a reader of the file can repeat the run.
RunInfo describe_run(const std::vector<std::string>& command);

/// For runs on a GPU, after describe_run(). Adds the CUDA device that cases run on, with the driver
/// and runtime it has then, also to the fingerprint. Apart from describe_run() because runs on the
/// CPU look for no device.
void describe_device(const DeviceInfo& device, Environment& environment);

}  // namespace attnbench
