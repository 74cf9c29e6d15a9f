#include "plugin/plugin_library.h"

#include <doctest/doctest.h>
#include <elf.h>

#include <fstream>
#include <iterator>
#include <string>

namespace attnbench {
namespace {

/// The beginning of this very program, which is built for this machine.
std::string own_head() {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  std::string head(64, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head[EI_NIDENT] = ET_DYN;  // position-independent programs have it anyway
  return head;
}

std::string with_byte(std::size_t place, char value) {
  std::string head = own_head();
  head[place] = value;
  return elf_problem(head);
}

}  // namespace

TEST_CASE("a shared library of this machine has no problem") {
  CHECK(elf_problem(own_head()) == "");
}

TEST_CASE("what is no shared library of this machine is told apart") {
  CHECK(elf_problem("") == "the file is empty");
  CHECK(elf_problem("#!/bin/sh") == "it is no shared library (no ELF header)");
  CHECK(elf_problem("!<arch>\n") == "it is no shared library (no ELF header)");
  CHECK(elf_problem(own_head().substr(0, 12)) == "it is cut off");
  CHECK(with_byte(EI_CLASS, ELFCLASS32) == "it is built for 32 bits, this program for 64");
  CHECK(with_byte(EI_DATA, ELFDATA2MSB) == "it is built for a big-endian machine");
  CHECK(with_byte(EI_NIDENT, ET_REL) == "it is an object file (link it with -shared)");
  CHECK(with_byte(EI_NIDENT, ET_EXEC) == "it is a program");
  CHECK(with_byte(EI_NIDENT, ET_CORE) == "it is a core dump");
  const std::size_t machine = EI_NIDENT + 2;
  CHECK(with_byte(machine, EM_ARM).starts_with("it is built for ARM, this program for "));
  CHECK(with_byte(machine, 99).starts_with("it is built for ELF machine 99, this program for "));
}

}  // namespace attnbench
