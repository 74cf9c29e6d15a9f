#include "cli/session/jobs.h"

#include <utility>

#include "cli/cases/refusals.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "core/system/printable.h"
#include "inputs/files/file_hashes.h"

namespace attnbench {
namespace {

constexpr const char* kOption = "--plant-fault";

/// One --plant-fault.
struct FaultRule {
  cuda::Fault fault;
  std::optional<int> rank;  // nothing = every rank
  std::string phase;        // "" = in a step of its own
  IdFilter filter;
};

/// The phase of "KIND:PHASE" or "KIND@RANK:PHASE", which is cut off; "" where there is none.
std::string take_phase(std::string& kind) {
  const std::size_t colon = kind.find(':');
  if (colon == std::string::npos) return "";
  std::string phase = kind.substr(colon + 1);
  kind.erase(colon);
  return phase;
}

/// The rank of "KIND@RANK", which is cut off; nothing where there is none.
std::optional<int> take_rank(std::string& kind) {
  const std::size_t at = kind.find('@');
  const std::string digits = at == std::string::npos ? "" : kind.substr(at + 1);
  if (digits.empty() || digits.size() > 4 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  kind.erase(at);
  return std::stoi(digits);
}

/// Errors: kUsage unless the text is KIND[@RANK][:PHASE]=REGEX.
FaultRule parse_rule(const std::string& text) {
  const std::size_t equals = text.find('=');
  std::string kind = text.substr(0, equals);
  std::string phase = take_phase(kind);
  const std::optional<int> rank = take_rank(kind);
  const std::optional<cuda::Fault> fault = enum_from_name<cuda::Fault>(kind);
  if (!fault || equals == std::string::npos) {
    std::vector<std::string> kinds;
    for (const auto& row : enum_rows(cuda::Fault{})) kinds.emplace_back(row.name);
    fail(ErrorKind::kUsage, "{}: expected {}, '=' and an expression, found '{}'", kOption,
         either_of(kinds), text);
  }
  return {*fault, rank, std::move(phase), IdFilter(text.substr(equals + 1), kOption)};
}

}  // namespace

std::vector<Job> make_jobs(const std::vector<Pair>& pairs, const DeviceChoice& device,
                           const std::string& repeat) {
  std::vector<Job> jobs;
  FileHashes hashes;
  for (const Pair& pair : pairs) {
    Job job;
    job.problem = pair.problem;
    job.backend = pair.backend;
    job.id = pair.id;
    job.repro = fmt::format("attnbench run {} --filter {}{}", shell_quote(pair.source->argument),
                            shell_quote(exact_regex(pair.id)), repeat);
    job.file_hashes = hashes.of(*pair.problem);
    job.extra_refusals = device_refusals(*pair.backend, *pair.problem, device);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

PlantedFaults::PlantedFaults(const std::vector<std::string>& options, std::vector<Job>& jobs,
                             int own_rank) {
  const std::vector<Job> right = jobs;
  for (const std::string& option : options) {
    const FaultRule rule = parse_rule(option);
    bool matched = false;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (!rule.filter.matches(jobs[i].id)) continue;
      // Why not of `jobs`: the job may have a faulty backend already.
      backends_.push_back(std::make_unique<FaultyBackend>(
          *right[i].backend, rule.fault,
          FaultPlace{rule.phase, rule.rank.value_or(own_rank) == own_rank}));
      jobs[i].backend = backends_.back().get();
      matched = true;
    }
    if (!matched) fail(ErrorKind::kUsage, "{}: no result id matches '{}'", kOption, option);
  }
}

}  // namespace attnbench
