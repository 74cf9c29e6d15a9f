#include "cudnn/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "cudnn/frontend.h"
#include "gpu/dynamic_library.h"

namespace attnbench {
namespace {

/// The first with sinks. Earlier ones have known defects: 9.10.0 computes wrong results.
constexpr std::size_t kLeastVersion = 91300;

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// Where pip puts the library in the active virtual environment.
void add_environment(std::vector<std::string>& names) {
  const char* root = std::getenv("VIRTUAL_ENV");
  if (root == nullptr) return;
  std::error_code ignored;
  const std::filesystem::path libraries = std::filesystem::path(root) / "lib";
  for (const auto& entry : std::filesystem::directory_iterator(libraries, ignored)) {
    const auto file = entry.path() / "site-packages/nvidia/cudnn/lib/libcudnn.so.9";
    if (std::filesystem::exists(file, ignored)) names.push_back(file.string());
  }
}

class LoadedCudnn final : public CudnnLibrary {
 public:
  LoadedCudnn(DynamicLibrary library, std::string path, std::string version)
      : library_(std::move(library)), path_(std::move(path)), version_(std::move(version)) {}

  const std::string& path() const override { return path_; }
  const std::string& version() const override { return version_; }
  std::unique_ptr<CudnnPlan> plan(const CudnnGraph& graph, void* stream) const override {
    return make_frontend_plan(graph, stream, version_);
  }

 private:
  DynamicLibrary library_;
  std::string path_;
  std::string version_;
};

/// Where the loader found the library that `function` is in: a bare name may be anywhere.
std::string path_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

struct Candidate {
  DynamicLibrary library;
  std::size_t version = 0;
  std::string path;
};

/// The first library that is new enough, else the last one that is not; version 0 = there is none.
Candidate open_new_enough() {
  // Why Python's first: torch in the same process would get what was loaded under this name.
  std::vector<std::string> names;
  add_environment(names);
  names.emplace_back("libcudnn.so.9");
  Candidate found;
  for (const std::string& name : names) {
    DynamicLibrary library({name});
    std::size_t (*get_version)() = nullptr;
    if (!library.is_open() || !library.bind(get_version, "cudnnGetVersion")) continue;
    found = {std::move(library), get_version(), path_of(reinterpret_cast<void*>(get_version))};
    if (found.version >= kLeastVersion) break;
  }
  return found;
}

CudnnChoice look_for_cudnn() {
  CudnnChoice choice;
  const std::string frontend = frontend_version();
  if (frontend.empty()) choice.missing.emplace_back("built without cudnn-frontend");
  Candidate found = open_new_enough();
  const std::string version = version_text(found.version);
  if (found.version == 0) {
    choice.missing.emplace_back("cuDNN not found");
  } else if (found.version < kLeastVersion) {
    choice.missing.push_back(
        fmt::format("cuDNN {} is older than {}", version, version_text(kLeastVersion)));
  } else if (!bind_cudnn(found.library)) {
    choice.missing.push_back(fmt::format("cuDNN {} lacks a function of cudnn-frontend", version));
  }
  if (!choice.missing.empty()) return choice;
  // Why static: what cuDNN allocates at exit must find its library.
  static const LoadedCudnn loaded(std::move(found.library), std::move(found.path),
                                  fmt::format("{}, frontend {}", version, frontend));
  choice.library = &loaded;
  return choice;
}

}  // namespace

const CudnnChoice& find_cudnn() {
  static const CudnnChoice choice = look_for_cudnn();
  return choice;
}

}  // namespace attnbench
