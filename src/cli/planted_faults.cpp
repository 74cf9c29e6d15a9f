#include "cli/planted_faults.h"

#include "cli/selection.h"
#include "core/error.h"

namespace attnbench {
namespace {

constexpr const char* kOption = "--plant-fault";

struct FaultRule {
  cuda::Fault fault;
  IdFilter filter;
};

FaultRule parse_rule(const std::string& text, bool on_cuda) {
  const std::size_t equals = text.find('=');
  const std::string kind = text.substr(0, equals);
  const bool known = kind == "hang" || kind == "crash" || kind == "overrun";
  if (!known || equals == std::string::npos) {
    fail(ErrorKind::kUsage,
         "{}: expected hang, crash or overrun, '=' and an expression, found '{}'", kOption, text);
  }
  if (kind == "overrun" && !on_cuda) {
    fail(ErrorKind::kUsage, "{} overrun: buffers have guard zones on CUDA devices only", kOption);
  }
  const cuda::Fault fault = kind == "hang"    ? cuda::Fault::kHang
                            : kind == "crash" ? cuda::Fault::kCrash
                                              : cuda::Fault::kOverrun;
  return {fault, IdFilter(text.substr(equals + 1), kOption)};
}

}  // namespace

PlantedFaults::PlantedFaults(const std::vector<std::string>& options, bool on_cuda,
                             std::vector<Job>& jobs) {
  for (const std::string& option : options) {
    const FaultRule rule = parse_rule(option, on_cuda);
    bool matched = false;
    for (Job& job : jobs) {
      if (!rule.filter.matches(job.id)) continue;
      // Why by name: the job may have a faulty backend already.
      backends_.push_back(
          std::make_unique<FaultyBackend>(*find_backend(job.backend->name()), rule.fault));
      job.backend = backends_.back().get();
      matched = true;
    }
    if (!matched) fail(ErrorKind::kUsage, "{}: no result id matches '{}'", kOption, option);
  }
}

}  // namespace attnbench
