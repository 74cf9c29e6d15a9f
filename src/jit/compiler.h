// What turns the program of a spec into machine code. An interface, so that the disk cache and
// everything above it are tested without NVRTC.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace attnbench {

/// Text of each file by its path from the root: "kernels/attention/prefill.cuh".
using KernelFiles = std::map<std::string, std::string>;

/// The files under kernels/ as they were when the program was built.
const KernelFiles& embedded_kernel_files();

/// The files that `program` includes with quotes, and those that these include. Errors: kInternal
/// for a file that is not in `files`, naming who includes it.
KernelFiles files_included_by(const std::string& program, const KernelFiles& files);

struct CompileJob {
  std::string program;  // as program_text() makes it
  std::string entry;    // as entry_expression() makes it
  std::string arch;     // "sm_90a"
  KernelFiles files;    // what the program includes
  std::string name;     // of the kernel, for error messages
};

struct CompiledKernel {
  std::string cubin;
  std::string lowered_name;  // of the entry in the cubin
  int registers = 0;         // of a thread
  int spill_bytes = 0;       // stores and loads of registers to local memory, of a thread
  int stack_bytes = 0;       // local memory of a thread
  int shared_bytes = 0;      // static shared memory of a CTA
  /// ptxas made every wgmma wait for the one before it, since it could not prove that their
  /// registers are left alone: right results at half the rate.
  bool has_serialised_products = false;
};

class Compiler {
 public:
  virtual ~Compiler() = default;
  /// Name and version, e.g. "NVRTC 13.0"; a cached kernel of another version is not used.
  virtual std::string version() const = 0;
  /// What is handed to the compiler for `arch`, beside the program.
  virtual std::vector<std::string> options(const std::string& arch) const = 0;
  /// May be called from several threads. Errors: kCuda with the kernel's name and the compiler's
  /// log.
  virtual CompiledKernel compile(const CompileJob& job) const = 0;
};

/// "sm_90a" for 90: from SM 9.0 on with the features of that very architecture.
std::string arch_of_sm(int sm);
/// 90 for "sm_90a" or "sm_90". Errors: kUsage for anything but sm_<number>[a|f].
int sm_of_arch(const std::string& arch);

}  // namespace attnbench
