// The files of the report page: src/report/page and the plotting library.
#pragma once

#include <map>
#include <string>

namespace attnbench {

/// Text by name: "src/report/page/style.css", "d3.min.js", "copyright" (the licence of D3).
const std::map<std::string, std::string>& embedded_page_files();

}  // namespace attnbench
