#include "plugin/embedded_python.h"

#include <fmt/format.h>

#include <utility>

#include "core/error.h"
#include "gpu/dynamic_library.h"

namespace attnbench {

/// Functions under their names in CPython's documentation. Those that give a PythonObject* give a
/// new reference, but for PySys_GetObject.
struct EmbeddedPython::Api {
  explicit Api(const std::string& path)
      : library({path}, DynamicLibrary::Symbols::kGlobal), missing(library.problem()) {
    if (!library.is_open()) return;
    bind(decode_locale, "Py_DecodeLocale");
    bind(set_program_name, "Py_SetProgramName");
    bind(initialize, "Py_InitializeEx");
    bind(lock, "PyGILState_Ensure");
    bind(unlock, "PyGILState_Release");
    bind(save_thread, "PyEval_SaveThread");
    bind(sys_object, "PySys_GetObject");
    bind(insert, "PyList_Insert");
    bind(import, "PyImport_ImportModule");
    bind(attribute, "PyObject_GetAttrString");
    bind(call, "PyObject_CallObject");
    bind(new_tuple, "PyTuple_New");
    bind(set_item, "PyTuple_SetItem");
    bind(tuple_size, "PyTuple_Size");
    bind(tuple_item, "PyTuple_GetItem");
    bind(text, "PyUnicode_FromString");
    bind(utf8, "PyUnicode_AsUTF8AndSize");
    bind(number, "PyLong_FromUnsignedLongLong");
    bind(integer, "PyLong_AsLongLong");
    bind(print_error, "PyErr_Print");
    bind(clear_error, "PyErr_Clear");
    bind(none, "_Py_NoneStruct");
    bind(reference, "Py_IncRef");
    bind(release, "Py_DecRef");
  }

  template <typename Function>
  void bind(Function*& function, const char* name) {
    if (!library.bind(function, name)) missing = fmt::format("it exports no {}", name);
  }

  DynamicLibrary library;
  std::string missing;  // why it cannot be used
  wchar_t* (*decode_locale)(const char*, std::size_t*) = nullptr;
  void (*set_program_name)(const wchar_t*) = nullptr;
  void (*initialize)(int) = nullptr;
  int (*lock)() = nullptr;
  void (*unlock)(int) = nullptr;
  void* (*save_thread)() = nullptr;
  PythonObject* (*sys_object)(const char*) = nullptr;
  int (*insert)(PythonObject*, std::ptrdiff_t, PythonObject*) = nullptr;
  PythonObject* (*import)(const char*) = nullptr;
  PythonObject* (*attribute)(PythonObject*, const char*) = nullptr;
  PythonObject* (*call)(PythonObject*, PythonObject*) = nullptr;
  PythonObject* (*new_tuple)(std::ptrdiff_t) = nullptr;
  int (*set_item)(PythonObject*, std::ptrdiff_t, PythonObject*) = nullptr;  // takes the reference
  std::ptrdiff_t (*tuple_size)(PythonObject*) = nullptr;
  PythonObject* (*tuple_item)(PythonObject*, std::ptrdiff_t) = nullptr;  // borrowed
  PythonObject* (*text)(const char*) = nullptr;
  const char* (*utf8)(PythonObject*, std::ptrdiff_t*) = nullptr;
  PythonObject* (*number)(unsigned long long) = nullptr;
  long long (*integer)(PythonObject*) = nullptr;
  void (*print_error)() = nullptr;
  void (*clear_error)() = nullptr;
  PythonObject* none = nullptr;
  void (*reference)(PythonObject*) = nullptr;
  void (*release)(PythonObject*) = nullptr;
};

/// Holds the interpreter for a thread. Every use of an object needs one, releasing it too: cases
/// run on a thread of the bench, and frameworks start threads of their own.
class EmbeddedPython::Lock {
 public:
  explicit Lock(const Api& api) : api_(api), state_(api.lock()) {}
  ~Lock() { api_.unlock(state_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  const Api& api_;
  int state_;
};

EmbeddedPython::EmbeddedPython(const PythonEnvironment& environment, const std::string& package_dir)
    : api_(std::make_shared<Api>(environment.library)) {
  if (!api_->missing.empty()) {
    fail(ErrorKind::kUnsupported, "{} cannot be loaded: {}", environment.library, api_->missing);
  }
  // Why the name: from it Python finds its modules, a virtual environment, and sys.executable. Its
  // functions are deprecated, but stay in the stable ABI; their successor is not in it.
  api_->set_program_name(api_->decode_locale(environment.executable.c_str(), nullptr));
  api_->initialize(0);  // without signal handlers
  PythonObject* const dir = api_->text(package_dir.c_str());
  api_->insert(api_->sys_object("path"), 0, dir);
  api_->release(dir);
  host_ = api_->import("attnbench.host");
  if (host_ == nullptr) api_->print_error();
  api_->save_thread();  // other threads of Python may run between our calls
  if (host_ == nullptr) {
    fail(ErrorKind::kUnsupported, "{} cannot import attnbench.host of {}", environment.executable,
         package_dir);
  }
  // The path of the interpreter that described the adapters, so that both import the same files.
  const auto complaint = complaint_of("start", {environment.search_path});
  if (complaint) fail(ErrorKind::kUnsupported, "{}: {}", environment.executable, *complaint);
}

/// A new reference; the tuple owns its items.
PythonObject* EmbeddedPython::tuple_of(const std::vector<PythonArgument>& arguments) const {
  PythonObject* const tuple = api_->new_tuple(static_cast<std::ptrdiff_t>(arguments.size()));
  std::ptrdiff_t place = 0;
  for (const PythonArgument& argument : arguments) {
    PythonObject* const item =
        argument.text ? api_->text(argument.text->c_str()) : api_->number(argument.number);
    api_->set_item(tuple, place++, item);
  }
  return tuple;
}

/// Null after an exception.
PythonObject* EmbeddedPython::run(const char* function,
                                  const std::vector<PythonArgument>& arguments) const {
  PythonObject* const callable = api_->attribute(host_, function);
  if (callable == nullptr) return nullptr;
  PythonObject* const tuple = tuple_of(arguments);
  PythonObject* const result = api_->call(callable, tuple);
  api_->release(tuple);
  api_->release(callable);
  return result;
}

/// Takes the reference. Exceptions are complaints already, but for the likes of no memory.
std::optional<std::string> EmbeddedPython::words_of(PythonObject* result) const {
  if (result == api_->none) {
    api_->release(result);
    return std::nullopt;
  }
  const char* const words = result == nullptr ? nullptr : api_->utf8(result, nullptr);
  if (words == nullptr) api_->clear_error();
  std::string complaint = words == nullptr ? "failed without a word" : words;
  if (result != nullptr) api_->release(result);
  return complaint;
}

std::optional<std::string> EmbeddedPython::complaint_of(
    const char* function, const std::vector<PythonArgument>& arguments) {
  const Lock lock(*api_);
  return words_of(run(function, arguments));
}

std::optional<std::string> EmbeddedPython::complaint_of(PythonObject* function) {
  const Lock lock(*api_);
  return words_of(api_->call(function, nullptr));
}

std::optional<std::string> EmbeddedPython::complaint_of(PythonObject* function,
                                                        std::vector<std::int64_t>& numbers) {
  const Lock lock(*api_);
  numbers.clear();
  PythonObject* const result = api_->call(function, nullptr);
  if (result == nullptr || result == api_->none) return words_of(result);
  const std::ptrdiff_t count = api_->tuple_size(result);
  if (count < 0) {
    api_->clear_error();  // it is no tuple
    return words_of(result);
  }
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    numbers.push_back(api_->integer(api_->tuple_item(result, i)));
  }
  api_->clear_error();  // of what is no integer
  api_->release(result);
  return std::nullopt;
}

std::optional<std::string> EmbeddedPython::call(const char* function,
                                                const std::vector<PythonArgument>& arguments,
                                                std::vector<PythonObject*>& results) {
  const Lock lock(*api_);
  PythonObject* const result = run(function, arguments);
  const std::ptrdiff_t count = result == nullptr ? -1 : api_->tuple_size(result);
  if (count < 0) {
    api_->clear_error();  // it is no tuple
    return words_of(result);
  }
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    results.push_back(api_->tuple_item(result, i));
    api_->reference(results.back());  // the tuple goes, its items must stay
  }
  api_->release(result);
  return std::nullopt;
}

std::optional<std::string> EmbeddedPython::take_text(PythonObject* object) {
  const Lock lock(*api_);
  return words_of(object);
}

void EmbeddedPython::release(PythonObject* object) {
  const Lock lock(*api_);
  api_->release(object);
}

}  // namespace attnbench
