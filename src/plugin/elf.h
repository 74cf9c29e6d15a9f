// Whether a file is a shared library of this machine, told before the loader is asked: its words
// are "wrong ELF class" or "invalid ELF header".
#pragma once

#include <string>
#include <string_view>

namespace attnbench {

/// Empty, or why a file that begins with `head` (64 bytes or all of it) is no shared library for
/// this program: "it is built for AArch64, this program for x86-64".
std::string elf_problem(std::string_view head);

}  // namespace attnbench
