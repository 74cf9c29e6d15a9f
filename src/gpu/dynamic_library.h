// A shared library that is looked for when the program runs, never when it is linked: NVRTC, NVML,
// cuDNN, Python, and the backends of users.
//
// One binary thus starts on every machine, and what is missing there is a reason instead of a
// loader error. Code is never unloaded, even when the object goes: these libraries have threads and
// memory that would be left without code.
#pragma once

#include <string>
#include <vector>

namespace attnbench {

class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  enum class Symbols { kLocal, kGlobal };  // kGlobal: libraries that are loaded later see them
  /// Opens the first of `names` that is found; otherwise is_open() is false.
  explicit DynamicLibrary(const std::vector<std::string>& names, Symbols symbols = Symbols::kLocal);
  ~DynamicLibrary();
  DynamicLibrary(DynamicLibrary&& other) noexcept;
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept;

  bool is_open() const { return handle_ != nullptr; }
  /// Why no name could be opened, in the words of the loader.
  const std::string& problem() const { return problem_; }
  /// Null when the library has no such symbol.
  void* symbol(const std::string& name) const;
  /// Sets a pointer to a function; returns whether the library has it.
  template <typename Function>
  bool bind(Function*& function, const std::string& name) const {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }

 private:
  void* handle_ = nullptr;
  std::string problem_ = "not opened";
};

}  // namespace attnbench
