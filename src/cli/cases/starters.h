// Files that `attnbench init` writes: a scenario, a plugin in C++, a backend in Python. They are
// embedded in the program, so that an installation without its source tree has them, and are the
// files of examples/ in the repository, which the tests build and run as users would.
//
// A new starter is a folder under examples/init, which the build embeds whole, a function here, and
// a kind in commands/init.cpp.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace attnbench {

/// A file to write, with its path in the folder that is made. Texts end with a line break and hold
/// no path of the machine that the program was built on.
struct StarterFile {
  std::string path;
  std::string text;
};

/// A CMake project of a kernel on the CPU that passes: kernel, interface, build, a scenario.
std::vector<StarterFile> plugin_starter();

/// A class over torch tensors that passes on the CPU and on a GPU, and a scenario.
std::vector<StarterFile> python_starter();

/// A scenario with everyday batches and comments on what can be varied.
StarterFile scenario_starter();

/// The same with the dimensions of a model whose config.json lies at `path`, or in the folder
/// `path`; the file is named after the model. Errors: E-IO, and E-FORMAT or E-CONFIG as in
/// scenario/text/hf_config.h, also for a file that is no configuration of a model.
StarterFile scenario_of_model(const std::filesystem::path& path);

/// Embedded files by their paths in the repository. Defined by the build.
const std::map<std::string, std::string>& embedded_starter_files();

}  // namespace attnbench
