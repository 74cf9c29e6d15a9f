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

/// Earlier ones have known defects: 9.10.0 and 9.10.1 compute wrong results.
constexpr std::size_t kLeastVersion = 91002;

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

std::string path_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

CudnnChoice look_for_cudnn() {
  CudnnChoice choice;
  const std::string frontend = frontend_version();
  if (frontend.empty()) choice.missing.emplace_back("built without cudnn-frontend");
  std::vector<std::string> names{"libcudnn.so.9"};
  add_environment(names);
  DynamicLibrary library(names);
  std::size_t (*get_version)() = nullptr;
  if (!library.is_open() || !library.bind(get_version, "cudnnGetVersion")) {
    choice.missing.emplace_back("cuDNN not found");
    return choice;
  }
  const std::size_t version = get_version();
  if (version < kLeastVersion) {
    choice.missing.push_back(fmt::format("cuDNN {} is older than {}", version_text(version),
                                         version_text(kLeastVersion)));
  } else if (!bind_cudnn(library)) {
    choice.missing.push_back(
        fmt::format("cuDNN {} lacks a function of cudnn-frontend", version_text(version)));
  }
  if (!choice.missing.empty()) return choice;
  // Why static: what cuDNN allocates at exit must find its library.
  static const LoadedCudnn loaded(std::move(library), path_of(reinterpret_cast<void*>(get_version)),
                                  fmt::format("{}, frontend {}", version_text(version), frontend));
  choice.library = &loaded;
  return choice;
}

}  // namespace

const CudnnChoice& find_cudnn() {
  static const CudnnChoice choice = look_for_cudnn();
  return choice;
}

}  // namespace attnbench
