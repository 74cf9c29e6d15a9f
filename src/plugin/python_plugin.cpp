#include "plugin/python_plugin.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/error.h"
#include "plugin/embedded_python.h"
#include "plugin/python_environment.h"

namespace attnbench {
namespace {

/// One Python for all of its adapters.
class Host {
 public:
  Host(PythonEnvironment environment, std::string package_dir)
      : environment_(std::move(environment)), package_dir_(std::move(package_dir)) {}

  /// Starts it at the first call. Errors: those of EmbeddedPython, the same each time.
  EmbeddedPython& python() {
    // Why only once: what has failed half way cannot be started again.
    if (!problem_.empty()) fail(ErrorKind::kUnsupported, "{}", problem_);
    try {
      if (!python_) python_ = std::make_unique<EmbeddedPython>(environment_, package_dir_);
    } catch (const Error& error) {
      problem_ = error.what();
      throw;
    }
    return *python_;
  }

 private:
  PythonEnvironment environment_;
  std::string package_dir_;
  std::unique_ptr<EmbeddedPython> python_;
  std::string problem_;  // why it did not start
};

/// What AttnbenchBackend::user points to.
struct Adapter {
  std::shared_ptr<Host> host;
  PythonAdapter described;
  std::string name;  // "python:MODULE:CLASS"
  AttnbenchBackend table{};
};

/// What prepare() makes.
struct Case {
  EmbeddedPython& python;
  std::vector<PythonObject*> functions;  // run, close
  std::vector<std::int64_t> numbers;     // what run() returned, as it came
  std::vector<ReturnedTensor> returned;  // and as what it means
};

/// The text that a plugin's function returns lives until the next call of the thread.
const char* kept(std::optional<std::string> complaint) {
  thread_local std::string text;
  if (!complaint) return nullptr;
  text = std::move(*complaint);
  return text.c_str();
}

const Adapter& adapter_of(const AttnbenchBackend* self) {
  return *static_cast<const Adapter*>(self->user);
}

/// Null for a case that the adapter takes. Why an exception and not a reason when supports() itself
/// fails: an adapter with a bug must not look like one that merely has limits.
const char* supports(const AttnbenchBackend* self, const AttnbenchProblem* problem) {
  const Adapter& adapter = adapter_of(self);
  if (!adapter.described.unsupported.empty()) return adapter.described.unsupported.c_str();
  std::optional<std::string> complaint;
  std::vector<PythonObject*> reasons;
  try {
    EmbeddedPython& python = adapter.host->python();
    complaint = python.call("supports", {adapter.described.name, problem}, reasons);
    if (!complaint) return reasons.empty() ? nullptr : kept(python.take_text(reasons.front()));
  } catch (const Error& error) {  // it cannot be started
    return kept(error.what());
  }
  throw std::runtime_error(*complaint);
}

/// The adapter imports, allocates and may compile here, none of which is timed. `state` owns the
/// objects that Python returned until destroy() gives them back.
const char* prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                    const AttnbenchTensors* tensors, const AttnbenchHost* host, void** state) {
  const Adapter& adapter = adapter_of(self);
  EmbeddedPython& python = adapter.host->python();
  auto prepared = std::make_unique<Case>(Case{python, {}, {}, {}});
  auto complaint = python.call("prepare", {adapter.described.name, problem, tensors, host->stream},
                               prepared->functions);
  if (!complaint) *state = prepared.release();
  return kept(std::move(complaint));
}

/// The tensors of run() of attnbench.host, each as kind, address, first token, number of axes,
/// shape and strides.
void read_returned(const std::vector<std::int64_t>& numbers,
                   std::vector<ReturnedTensor>& returned) {
  returned.clear();
  for (auto next = numbers.begin(); next != numbers.end();) {
    ReturnedTensor& part = returned.emplace_back();
    part.kind = static_cast<ReturnedTensor::Kind>(*next++);
    part.data = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(*next++));
    part.first_token = *next++;
    const std::int64_t axes = *next++;
    part.shape.assign(next, next + axes);
    part.strides.assign(next + axes, next + 2 * axes);
    next += 2 * axes;
  }
}

// Why no stream: the adapter got it in prepare() and made it the current one of its framework.
// Where the results lie is noted here, so that they are copied without Python when the time is
// over: hooks, patched methods and finalisers of the user would run beside it.
const char* run(void* state, void* /*stream*/) {
  auto& prepared = *static_cast<Case*>(state);
  auto complaint = prepared.python.complaint_of(prepared.functions[0], prepared.numbers);
  read_returned(prepared.numbers, prepared.returned);
  return kept(std::move(complaint));
}

const std::vector<ReturnedTensor>& returned(const void* state) {
  return static_cast<const Case*>(state)->returned;
}

/// Objects are released even when the adapter complains; only then is the complaint an error.
void destroy(void* state) {
  const std::unique_ptr<Case> prepared(static_cast<Case*>(state));
  const auto complaint = prepared->python.complaint_of(prepared->functions[1]);
  for (PythonObject* function : prepared->functions) prepared->python.release(function);
  if (complaint) fail(ErrorKind::kInternal, "{}", *complaint);
}

/// The table holds pointers into `adapter`, so it shares its ownership.
PluginTable table_of(const std::shared_ptr<Adapter>& adapter) {
  AttnbenchBackend& own = adapter->table;
  own = adapter->described.table;
  own.struct_size = sizeof own;
  own.abi_version = ATTNBENCH_ABI_VERSION;
  own.name = adapter->name.c_str();
  own.version = adapter->described.version.c_str();
  own.description = adapter->described.description.c_str();
  own.user = adapter.get();
  own.supports = supports;
  own.prepare = prepare;
  own.run = run;
  own.destroy = destroy;
  PluginTable table;
  table.self = &own;
  table.table = own;
  table.returned = returned;
  table.owner = adapter;
  return table;
}

}  // namespace

std::vector<PythonPlugin> load_python_plugins(const std::string& package_dir,
                                              const std::vector<std::string>& names) {
  PythonEnvironment environment = describe_python(package_dir, names);
  const auto host = std::make_shared<Host>(environment, package_dir);
  std::vector<PythonPlugin> plugins;
  for (PythonAdapter& described : environment.adapters) {
    auto adapter = std::make_shared<Adapter>();
    adapter->host = host;
    adapter->name = kPythonPrefix + described.name;
    adapter->described = std::move(described);
    const PythonAdapter& own = adapter->described;
    plugins.push_back({{own.file, own.version, own.sha256}, table_of(adapter)});
  }
  return plugins;
}

}  // namespace attnbench
