// Checks of numbers on the command line.
#pragma once

#include <functional>
#include <string>

namespace attnbench {

/// For CLI::Option::check(): what is wrong with the text of an option, or nothing.
using NumberCheck = std::function<std::string(const std::string& text)>;

/// A number from `least` to `most`. Why not CLI::Range: it takes "nan", which is neither below
/// nor above anything.
NumberCheck number_between(double least, double most);

/// A finite number above 0 or, with `or_zero`, from 0 on.
NumberCheck positive_number(bool or_zero = false);

}  // namespace attnbench
