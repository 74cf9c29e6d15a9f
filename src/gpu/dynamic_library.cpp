#include "gpu/dynamic_library.h"

#include <dlfcn.h>

#include <utility>

namespace attnbench {

DynamicLibrary::DynamicLibrary(const std::vector<std::string>& names, Symbols symbols) {
  const int scope = symbols == Symbols::kGlobal ? RTLD_GLOBAL : RTLD_LOCAL;
  for (const std::string& name : names) {
    // Why NODELETE: NVRTC and the driver keep memory and threads that unloading would orphan.
    handle_ = dlopen(name.c_str(), RTLD_NOW | scope | RTLD_NODELETE);
    if (handle_ != nullptr) {
      problem_.clear();
      return;
    }
    const char* reason = dlerror();
    problem_ = reason == nullptr ? name + " could not be opened" : reason;
  }
}

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

DynamicLibrary::DynamicLibrary(DynamicLibrary&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), problem_(std::move(other.problem_)) {}

DynamicLibrary& DynamicLibrary::operator=(DynamicLibrary&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(problem_, other.problem_);
  return *this;
}

void* DynamicLibrary::symbol(const std::string& name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name.c_str());
}

}  // namespace attnbench
