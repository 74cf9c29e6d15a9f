// The compiler of the program: NVRTC, found when the program runs, with the assembler behind it.
//
// NVRTC is looked for where the loader looks (LD_LIBRARY_PATH) and in the usual place of the
// toolkit, newest version first; a machine without it can still run everything on the CPU. Kernels
// are compiled to machine code for one architecture (cubin), never to PTX that a driver would
// translate: what was tested is what runs, and registers and spills are known when it is compiled.
//
// Compiling is the slow part of a first run (seconds a kernel), so several are compiled at a time,
// and whatever was compiled once is found in the disk cache (disk_cache.h) by its program, its
// files, the options and the version: what changes the machine code must show in one of these.
#pragma once

#include <memory>
#include <string>

#include "jit/compiler.h"

namespace attnbench {

/// The library that was opened is kept open by the compiler. Without one the kernels that are in
/// the disk cache cannot be used either, since their key has the version of the compiler.
struct CompilerChoice {
  std::unique_ptr<Compiler> compiler;  // or null
  /// "NVRTC not found" when null: shown as the reason why no kernel can be compiled.
  std::string missing;
};

/// Looks for it at every call; what it returns may be used from several threads.
CompilerChoice find_nvrtc();

// What ptxas -v, the assembler's report in NVRTC's log, says about a kernel. There is no interface
// for these numbers before the kernel is loaded, which takes a device.

/// Sets registers, spill_bytes, stack_bytes, shared_bytes and has_serialised_products of `kernel`
/// from the lines about its lowered_name; functions that were not inlined have lines of their own,
/// which are passed over. Errors: kCuda when the log has none, since a kernel whose spills are
/// unknown would pass the tests that bound them.
void read_ptxas_report(const std::string& log, CompiledKernel& kernel);

}  // namespace attnbench
