// What makes a number doubtful, as a sign behind it and a sentence below the table.
//
//   time*   other programs had the cores while it was taken
//   time^   the clocks of the device were throttled
//   time?   faster than the device can be
//   noise!  above 5 %
//   quant!  scales clip values
//
// Which results get one is decided here for every table, in the terminal and in Markdown; the page
// has the same signs (page/model.js). Numbers in files are without them.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// Marked above: waiting for cores as a share of the samples' time, and noise.
inline constexpr double kMuchWait = 0.05;
inline constexpr double kMuchNoise = 0.05;

/// Signs behind the time, the noise and the cost of quantising; mostly empty.
std::string time_mark(const Result& result);
std::string noise_mark(const Result& result);
std::string quant_mark(const Result& result);

/// The numbers with their signs, empty where a result has none.
std::string marked_time(const Result& result);
std::string marked_noise(const Result& result);
std::string marked_quant(const Result& result);

/// "97.3% of the keys, 97.1% of the values": what static scales clip; empty where they clip
/// nothing.
std::string clipped_text(const Result& result);

/// A sentence for every sign that stands in a table of these results: what it means, of how many
/// results, and how far it goes. `noise_column`: where the sign of the noise stands.
std::vector<std::string> mark_legend(const std::vector<Result>& results,
                                     const std::string& noise_column = "noise");

/// The same below a table, in lines of the width.
void write_legend(std::ostream& out, const std::vector<Result>& results, std::size_t width,
                  const std::string& noise_column = "noise");

}  // namespace attnbench
