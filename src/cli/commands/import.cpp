// attnbench import: workloads of other projects as scenarios.
//
// Nothing is run: what comes out are files that are read like any scenario, and that a user may
// change. A workload that this program has no case for is left out with a notice that says why, so
// that one odd line does not keep the rest of a captured hour from being used.
#include <memory>

#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/options/shared_options.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "interop/trace/set.h"

namespace attnbench {
namespace {

struct ImportArguments {
  std::vector<std::string> files;
  std::string output;
  std::string root;
  ConsoleOptions console;
};

int import_files(const ImportArguments& arguments, const Console& console) {
  if (arguments.files.size() > 2) {
    fail(ErrorKind::kUsage, "import: expected a definition and a file of workloads, found {} files",
         arguments.files.size());
  }
  const std::filesystem::path source = arguments.files.front();
  const TraceDefinition definition = read_trace_definition(source);
  trace_form(definition);
  std::vector<TraceWorkload> workloads;
  std::filesystem::path root = arguments.root;
  if (arguments.files.size() > 1) {
    workloads = read_trace_workloads(arguments.files[1]);
    if (workloads.empty()) fail(ErrorKind::kFormat, "{}: no workload", arguments.files[1]);
    if (root.empty()) root = trace_root(arguments.files[1], workloads);
  }
  const ImportedTraces imported = import_definition(definition, workloads, root, arguments.output);
  if (!arguments.console.quiet) {
    for (const std::string& notice : imported.notices) print_notice(console.err, notice);
  }
  for (const std::filesystem::path& path : imported.scenarios) {
    console.out << path.string() << "\n";
  }
  if (!imported.scenarios.empty()) return kExitPassed;
  fail(ErrorKind::kValue, "{}: no workload of the definition {}", arguments.files[1],
       definition.name);
}

}  // namespace

RunCommand declare_import(OptionTable& options) {
  auto arguments = std::make_shared<ImportArguments>();
  options.add({.names = "FILES",
               .value = "DEFINITION [WORKLOADS]",
               .help = "A definition of FlashInfer-Trace or SOL-ExecBench (JSON), and its "
                       "workloads (JSON lines)",
               .target = &arguments->files,
               .required = true});
  options.add({.names = "-o,--output",
               .value = "DIR",
               .help = "Folder for the scenarios: one for each workload, with its tensors",
               .target = &arguments->output,
               .required = true});
  options.add({.names = "--root",
               .value = "DIR",
               .help = "Folder that the workloads' safetensors files are relative to (default: the "
                       "nearest one above WORKLOADS that has them)",
               .target = &arguments->root});
  add_console_options(options, arguments->console);
  return [arguments](const Console& console) { return import_files(*arguments, console); };
}

}  // namespace attnbench
