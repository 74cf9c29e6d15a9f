// For authors of kernels: device files from a folder in the place of those that the program was
// built with, so that a change is tried without building anything.
#pragma once

#include <filesystem>
#include <string>

#include "jit/compiler.h"

namespace attnbench {

/// The variable of the environment that names the folder: a copy of kernels/, or that folder
/// itself.
inline constexpr const char* kKernelFolderVariable = "ATTNBENCH_KERNEL_DIR";

/// What the variable says; empty when it is not set.
std::string kernel_folder();

/// All device files below `folder`, by the paths that includes name ("kernels/common/mask.cuh").
/// Errors: E-IO for a folder that is not there or has no device file.
KernelFiles read_kernel_files(const std::filesystem::path& folder);

/// The device files that kernels are compiled from in this process: those of kernel_folder(), read
/// once, or the embedded ones. A compiled kernel is cached by the text of its files, so both may
/// share a cache.
const KernelFiles& kernel_files();

}  // namespace attnbench
