// The device files of the program, and which of them a kernel is made of.
#pragma once

#include <map>
#include <string>

namespace attnbench {

/// Text of each file by its path from the root: "kernels/attention/prefill.cuh".
using KernelFiles = std::map<std::string, std::string>;

/// The files under kernels/ as they were when the program was built.
const KernelFiles& embedded_kernel_files();

/// The files that `program` includes with quotes, and those that these include. Errors: kInternal
/// for a file that is not in `files`, naming who includes it.
KernelFiles files_included_by(const std::string& program, const KernelFiles& files);

}  // namespace attnbench
