#include "report/page.h"

#include <fmt/format.h>

#include <set>

#include "report/format.h"

namespace attnbench {
namespace {

/// In the order in which they must run: each uses only what stands before it.
constexpr const char* kScripts[] = {
    "format.js",   "dom.js",     "model.js",    "chart.js", "filters.js",      "table.js",
    "roofline.js", "sweep.js",   "accuracy.js", "peers.js", "quantization.js", "cascade.js",
    "steps.js",    "samples.js", "compare.js",  "about.js", "main.js"};

// Why: whatever a name in a result file may do to the page, it can fetch nothing and send nothing.
constexpr const char* kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'";  // which default-src does not cover

const std::string& page_file(const std::string& name) {
  return embedded_page_files().at("src/report/page/" + name);
}

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char character : text) {
    switch (character) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      default:
        escaped += character;
    }
  }
  return escaped;
}

std::string title_of(const std::vector<ResultFile>& files) {
  std::set<std::string> scenarios;
  for (const ResultFile& file : files) {
    for (const Result& result : file.results) scenarios.insert(result.scenario);
  }
  constexpr std::size_t kMaxNamed = 3;
  std::string title = "attnbench: ";
  title += scenarios.size() > kMaxNamed ? fmt::format("{} scenarios", scenarios.size())
                                        : fmt::format("{}", fmt::join(scenarios, ", "));
  if (files.size() > 1) title += fmt::format(", {} files", files.size());
  return sanitize_utf8(title);
}

}  // namespace

void write_page(std::ostream& out, const std::vector<ResultFile>& files,
                const std::vector<PageComparison>& comparisons) {
  out << "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      << "<meta http-equiv=\"Content-Security-Policy\" content=\"" << kPolicy << "\">\n"
      << "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      << "<meta name=\"color-scheme\" content=\"light dark\">\n"
      << "<title>" << escape_html(title_of(files)) << "</title>\n<style>\n"
      << page_file("style.css") << "</style>\n</head>\n<body>\n"
      << page_file("body.html") << "<script type=\"application/json\" id=\"data\">"
      << page_data(files, comparisons)
      << "</script>\n<script type=\"text/plain\" id=\"d3-licence\">\n"
      << embedded_page_files().at("copyright") << "</script>\n<script>\n"
      << embedded_page_files().at("d3.min.js") << "</script>\n<script>\n\"use strict\";\n";
  for (const char* script : kScripts) out << page_file(script);
  out << "</script>\n</body>\n</html>\n";
}

}  // namespace attnbench
