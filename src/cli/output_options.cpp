#include "cli/output_options.h"

#include <CLI/CLI.hpp>

namespace attnbench {

void add_output_options(CLI::App& app, OutputFiles& files, const char* OutputFormat::*help,
                        const std::vector<OutputFormat>& formats) {
  for (const OutputFormat& format : formats) {
    if (format.*help == nullptr) continue;
    app.add_option(std::string("--") + format.name, files[format.name], format.*help)
        ->type_name("FILE")
        ->group(kOutputGroup);
  }
}

const std::string& result_file_path(const OutputFiles& files) {
  static const std::string none;
  const auto found = files.find(result_file_format().name);
  return found == files.end() ? none : found->second;
}

}  // namespace attnbench
