#include "report/tables/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/system/printable.h"
#include "report/format.h"
#include "report/markdown_text.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShown = 20;
constexpr std::size_t kNumColumns = 8;
constexpr std::size_t kNumTexts = 2;  // the columns before the numbers
using Cells = std::array<std::string, kNumColumns>;

Cells titles(const AgreementReport& report) {
  const std::string& a = report.first_device;
  const std::string& b = report.second_device;
  return {"result",    "status",    "err_ratio " + a, "err_ratio " + b,
          "NMSE " + a, "NMSE " + b, "factor",         "of"};
}

Cells cells_of(const Agreement& agreement) {
  const AgreementSide& a = agreement.first;
  const AgreementSide& b = agreement.second;
  const std::string status = a.status == b.status
                                 ? to_string(a.status)
                                 : fmt::format("{} / {}", to_string(a.status), to_string(b.status));
  const bool has_errors = std::isfinite(a.nmse) && std::isfinite(b.nmse);
  return {printable(agreement.id),
          status,
          format_ratio(a.err_ratio),
          format_ratio(b.err_ratio),
          format_error(a.nmse),
          format_error(b.nmse),
          has_errors ? fmt::format("{:.2f}", agreement.factor) : "-",
          agreement.figure.empty() ? "-" : agreement.figure};
}

void write_rows(std::ostream& out, const std::vector<Cells>& rows, std::size_t terminal_width) {
  std::array<std::size_t, kNumColumns> widths{};
  std::size_t others = 0;
  for (std::size_t c = 0; c < kNumColumns; ++c) {
    for (const Cells& row : rows) widths[c] = std::max(widths[c], display_width(row[c]));
    if (c > 0) others += widths[c] + 2;
  }
  constexpr std::size_t kLeastId = 20;
  const std::size_t room = terminal_width > others ? terminal_width - others : 0;
  widths[0] = std::min(widths[0], std::max(kLeastId, room));
  for (const Cells& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < kNumColumns; ++c) {
      const std::string text = shorten_middle(row[c], widths[c]);
      const std::string fill(widths[c] - display_width(text), ' ');
      line += (c == 0 ? "" : "  ") + (c < kNumTexts ? text + fill : fill + text);
    }
    out << line << "\n";
  }
}

std::string outcome(const AgreementReport& report) {
  std::size_t same_status = 0;
  std::size_t with_errors = 0;
  double largest = 1;
  for (const Agreement& agreement : report.cases) {
    same_status += agreement.first.status == agreement.second.status;
    with_errors += std::isfinite(agreement.first.nmse) && std::isfinite(agreement.second.nmse);
    largest = std::max(largest, agreement.factor);
  }
  return fmt::format(
      "{} cases in both files: {} of the same status, {} with errors on both sides, at most {:.2f} "
      "times apart (allowed {:.3g}); {} in one file only",
      report.cases.size(), same_status, with_errors, largest, report.allowed_factor,
      report.lone.size());
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

void write_agreement_table(std::ostream& out, const AgreementReport& report,
                           const TableOptions& options) {
  std::vector<Cells> rows{titles(report)};
  for (const Agreement& agreement : report.cases) {
    const bool fails = !agreement.disagreement.empty();
    if (fails || options.show_reasons || rows.size() <= kShown) rows.push_back(cells_of(agreement));
  }
  write_rows(out, rows, static_cast<std::size_t>(std::max(options.width, 40)));
  out << "\n";
  for (const Agreement& agreement : report.cases) {
    if (agreement.disagreement.empty()) break;
    out << printable_lines(fmt::format("{}: {}\n", agreement.id, agreement.disagreement));
  }
  for (const std::string& id : report.lone) {
    out << printable_lines(fmt::format("{}: in one file only\n", id));
  }
  out << outcome(report) << "\n";
  const int failures = report.failures();
  out << (failures == 0 ? "the devices agree"
                        : fmt::format("the devices disagree: {} cases", failures))
      << "\n";
}

void write_agreement_markdown(std::ostream& out, const AgreementReport& report) {
  out << fmt::format("| {} |\n|---|---|", fmt::join(titles(report), " | "));
  for (std::size_t c = kNumTexts; c < kNumColumns; ++c) out << "---:|";
  out << "\n";
  for (const Agreement& agreement : report.cases) {
    Cells cells = cells_of(agreement);
    cells[0] = markdown_cell(cells[0]);
    out << fmt::format("| {} |\n", fmt::join(cells, " | "));
  }
  out << "\n" << outcome(report) << "\n";
}

void write_agreement_json(std::ostream& out, const AgreementReport& report) {
  Json json = {{"schema_version", 1},
               {"devices", Json::array({report.first_device, report.second_device})},
               {"allowed_factor", report.allowed_factor},
               {"passed", report.failures() == 0},
               {"lone", report.lone},
               {"cases", Json::array()}};
  for (const Agreement& agreement : report.cases) {
    const AgreementSide& a = agreement.first;
    const AgreementSide& b = agreement.second;
    json["cases"].push_back(
        {{"id", agreement.id},
         {"status", Json::array({to_string(a.status), to_string(b.status)})},
         {"err_ratio", Json::array({number(a.err_ratio), number(b.err_ratio)})},
         {"nmse", Json::array({number(a.nmse), number(b.nmse)})},
         {"lse_err_ratio", Json::array({number(a.lse_err_ratio), number(b.lse_err_ratio)})},
         {"lse_nmse", Json::array({number(a.lse_nmse), number(b.lse_nmse)})},
         {"factor", number(agreement.factor)},
         {"figure", agreement.figure},
         {"disagreement", agreement.disagreement}});
  }
  out << json.dump(2) << "\n";
}

}  // namespace attnbench
