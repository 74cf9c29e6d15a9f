// attnbench compile: the kernels of scenarios into the cache, without a GPU.
//
// For each architecture the pairs are planned as `run` would plan them, every kernel is compiled
// once, while further pairs are planned, and stored in the folder that `run` reads, and a table
// tells registers, shared memory and spills. Used to fill caches of machines without a compiler,
// and by tests to keep kernels from spilling.
#include <algorithm>
#include <deque>
#include <functional>
#include <memory>

#include "cli/cases/device.h"
#include "cli/cases/kernel_specs.h"
#include "cli/cases/plugins.h"
#include "cli/cases/refusals.h"
#include "cli/cases/scenario_files.h"
#include "cli/cases/selection.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "core/error.h"
#include "core/system/parallel.h"
#include "core/system/work_queue.h"
#include "jit/kernel_spec.h"
#include "jit/kernel_store.h"
#include "jit/nvrtc_compiler.h"

namespace attnbench {
namespace {

struct CompileArguments {
  std::vector<std::string> scenarios;
  SelectionOptions selection;
  ConsoleOptions console;
  std::vector<std::string> archs;
  std::string cache_dir;
  std::optional<int> compile_jobs;
  bool list = false;
  bool fail_on_spills = false;
};

constexpr const char* kDefaultArch = "sm_90a";

/// What the kernels of all pairs on one architecture are.
struct Collection {
  std::vector<KernelSpec> specs;  // each once
  int num_pairs = 0;
  int num_unsupported = 0;
};

/// The facts that support is judged by when kernels for `sm` are wanted, with the multiprocessors
/// of
/// --assume-num-sms where that is given.
DeviceChoice device_of_sm(int sm, std::optional<int> num_sms) {
  DeviceChoice device;
  device.name = "cuda:0";
  device.facts = {sm, num_sms.value_or(cuda::target_of_sm(sm).num_sms), true};
  return device;
}

/// `found` hears of each kernel as it is found.
Collection collect(const std::vector<Pair>& pairs, const DeviceChoice& device,
                   const NewKernels::Take& found) {
  Collection all;
  NewKernels kernels([&](const KernelSpec& spec) {
    all.specs.push_back(spec);
    found(spec);
  });
  for (const Pair& pair : pairs) {
    if (pair.backend->plugin() != nullptr) continue;  // it brings its kernels compiled
    ++all.num_pairs;
    if (!all_refusals(*pair.backend, *pair.problem, device).empty()) {
      ++all.num_unsupported;
      continue;
    }
    const cuda::Target target = target_of(device);
    kernels.add(specs_of_pair(*pair.problem, *pair.backend, target));
    kernels.add(specs_of_request_alone(*pair.problem, *pair.backend, target));
    kernels.add(specs_of_screening(*pair.problem));
  }
  if (all.num_unsupported < all.num_pairs) kernels.add(specs_of_runs(/*times=*/true));
  return all;
}

void print_names(std::ostream& out, const std::vector<KernelSpec>& specs) {
  for (const KernelSpec& spec : specs) out << spec.name << "\n";
}

void print_kernels(std::ostream& out, const std::vector<KernelSpec>& specs,
                   const std::vector<const StoredKernel*>& kernels) {
  std::size_t width = std::string("kernel").size();
  for (const KernelSpec& spec : specs) width = std::max(width, spec.name.size());
  out << fmt::format("{:<{}}  registers  shared bytes  spill bytes  \n", "kernel", width);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const CompiledKernel& kernel = kernels[i]->compiled;
    out << fmt::format("{:<{}}  {:>9}  {:>12}  {:>11}  {}\n", specs[i].name, width,
                       kernel.registers, kernel.shared_bytes, kernel.spill_bytes,
                       kernels[i]->was_compiled ? "compiled" : "cached");
  }
}

/// Names every kernel that spills more than its spec allows, or whose products wait for one
/// another; whether there was none.
bool check_spills(std::ostream& err, const std::string& arch, const std::vector<KernelSpec>& specs,
                  const std::vector<const StoredKernel*>& kernels) {
  bool none = true;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (kernels[i]->compiled.has_serialised_products) {
      err << fmt::format("attnbench: kernel '{}' for {}: ptxas has serialised its products\n",
                         specs[i].name, arch);
      none = false;
    }
    const int bytes = kernels[i]->compiled.spill_bytes;
    if (bytes <= specs[i].allowed_spill_bytes) continue;
    err << fmt::format("attnbench: kernel '{}' for {} spills {} bytes, {} are allowed\n",
                       specs[i].name, arch, bytes, specs[i].allowed_spill_bytes);
    none = false;
  }
  return none;
}

/// What the kernels of all architectures came to.
struct Totals {
  int num_kernels = 0;
  bool spilled = false;
};

/// Compiles the kernels of one architecture while they are being found.
class ArchCompiler {
 public:
  ArchCompiler(KernelStore& store, std::string arch, int num_threads)
      : store_(store), arch_(std::move(arch)), queue_(num_threads) {}

  void add(const KernelSpec& spec) {
    const StoredKernel*& place = kernels_.emplace_back(nullptr);
    queue_.add([this, spec, &place] { place = &store_.get(spec, arch_); });
  }
  /// In the order in which they were added, when all are compiled.
  std::vector<const StoredKernel*> finish() {
    queue_.finish();
    return {kernels_.begin(), kernels_.end()};
  }

 private:
  KernelStore& store_;
  std::string arch_;
  std::deque<const StoredKernel*> kernels_;  // each stays where it is
  WorkQueue queue_;
};

/// `store` is null where kernels are only listed.
void compile_arch(const std::vector<Pair>& pairs, const std::string& arch, KernelStore* store,
                  const CompileArguments& arguments, const Console& console, Totals& totals) {
  std::unique_ptr<ArchCompiler> compiler;
  if (store != nullptr) {
    const int jobs = arguments.compile_jobs.value_or(available_cores());
    compiler = std::make_unique<ArchCompiler>(*store, arch, jobs);
  }
  const Collection found =
      collect(pairs, device_of_sm(sm_of_arch(arch), arguments.selection.assume_num_sms),
              [&](const KernelSpec& spec) {
                if (compiler) compiler->add(spec);
              });
  totals.num_kernels += static_cast<int>(found.specs.size());
  console.out << fmt::format("{}: {} kernel{}\n", arch, found.specs.size(),
                             found.specs.size() == 1 ? "" : "s");
  if (!compiler) {
    print_names(console.out, found.specs);
  } else {
    const std::vector<const StoredKernel*> kernels = compiler->finish();
    if (!kernels.empty()) print_kernels(console.out, found.specs, kernels);
    if (arguments.fail_on_spills && !check_spills(console.err, arch, found.specs, kernels)) {
      totals.spilled = true;
    }
  }
  if (found.num_unsupported > 0 && !arguments.console.quiet) {
    console.err << fmt::format(
        "attnbench: {} of {} case-backend pairs are unsupported on {}: see 'attnbench support'\n",
        found.num_unsupported, found.num_pairs, arch);
  }
}

/// Why the architectures are checked first: a wrong one should be told before minutes of compiling.
int compile(const CompileArguments& arguments, const Console& console) {
  for (const std::string& arch : arguments.archs) sm_of_arch(arch);
  const std::vector<LoadedScenario> scenarios =
      load_scenarios(arguments.scenarios, scenario_overrides(arguments.selection));
  Plugins plugins({}, choose_device("cpu", ""));
  plugins.add_named(named_backends(arguments.selection, scenarios));
  const std::vector<Pair> pairs = select_pairs(scenarios, arguments.selection, plugins.backends());
  if (pairs.empty() && !arguments.console.quiet) {
    print_error(console.err, why_no_pairs(arguments.selection));
  }
  if (!arguments.list) {
    if (const CompilerChoice nvrtc = find_nvrtc(); !nvrtc.compiler) {
      console.err << "attnbench: unsupported: " << nvrtc.missing << "\n";
      return kExitNothingRan;
    }
  }
  std::vector<std::string> archs = arguments.archs;
  if (archs.empty()) {
    const DeviceChoice device = choose_device("auto", "");
    archs = {device.info ? arch_of_sm(device.info->sm) : kDefaultArch};
  }
  const std::unique_ptr<KernelStore> store =
      arguments.list ? nullptr : make_kernel_store(arguments.cache_dir);
  Totals totals;
  for (const std::string& arch : archs) {
    compile_arch(pairs, arch, store.get(), arguments, console, totals);
  }
  if (const std::string problem = store ? store->cache_problem() : ""; !problem.empty()) {
    fail(ErrorKind::kIo, "{}", problem);
  }
  if (totals.spilled) return kExitIncorrect;
  return totals.num_kernels > 0 ? kExitPassed : kExitNothingRan;
}

}  // namespace

RunCommand declare_compile(OptionTable& options) {
  auto arguments = std::make_shared<CompileArguments>();
  add_scenarios_argument(options, arguments->scenarios);
  options.add({.names = "--arch",
               .value = "ARCH",
               .help = "Architecture, e.g. sm_80, sm_89, sm_90a or sm_100a (repeatable); default: "
                       "the GPU's, else sm_90a",
               .target = &arguments->archs});
  add_cache_dir_option(options, "", arguments->cache_dir);
  options.add({.names = "--compile-jobs",
               .value = "N",
               .help = "Kernels that are compiled at a time (default: as many as there are cores)",
               .target = &arguments->compile_jobs,
               .numbers = whole_numbers(1, 256)});
  options.add({.names = "--list",
               .help = "List the kernels without compiling them",
               .target = &arguments->list});
  options.add({.names = "--fail-on-spills",
               .help = "Exit with 1 if a kernel spills registers although it must not, or if ptxas "
                       "has serialised its wgmma products",
               .target = &arguments->fail_on_spills});
  add_selection_options(options, arguments->selection);
  add_console_options(options, arguments->console);
  return [arguments](const Console& console) { return compile(*arguments, console); };
}

}  // namespace attnbench
