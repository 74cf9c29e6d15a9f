#include "core/result.h"

#include <array>
#include <utility>

namespace attnbench {
namespace {

constexpr std::array<std::pair<Status, const char*>, 6> kStatusNames{{
    {Status::kPassed, "passed"},
    {Status::kIncorrect, "incorrect"},
    {Status::kUnverified, "unverified"},
    {Status::kUnsupported, "unsupported"},
    {Status::kError, "error"},
    {Status::kSkipped, "skipped"},
}};

}  // namespace

const char* to_string(Status status) {
  return kStatusNames[static_cast<std::size_t>(status)].second;
}

std::optional<Status> status_from_string(std::string_view text) {
  for (const auto& [status, name] : kStatusNames) {
    if (text == name) return status;
  }
  return std::nullopt;
}

StatusCounts count_statuses(const std::vector<Result>& results) {
  StatusCounts counts;
  for (const Result& result : results) {
    switch (result.status) {
      case Status::kPassed:
        ++counts.passed;
        break;
      case Status::kIncorrect:
        ++counts.incorrect;
        break;
      case Status::kUnverified:
        ++counts.unverified;
        break;
      case Status::kUnsupported:
        ++counts.unsupported;
        break;
      case Status::kError:
        ++counts.error;
        break;
      case Status::kSkipped:
        ++counts.skipped;
        break;
    }
  }
  return counts;
}

}  // namespace attnbench
