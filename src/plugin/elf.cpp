#include "plugin/elf.h"

#include <elf.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <utility>

namespace attnbench {
namespace {

#if defined(__x86_64__)
constexpr unsigned kOwnMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr unsigned kOwnMachine = EM_AARCH64;
#elif defined(__powerpc64__)
constexpr unsigned kOwnMachine = EM_PPC64;
#elif defined(__riscv)
constexpr unsigned kOwnMachine = EM_RISCV;
#else
#error "elf.cpp: which machine is this?"
#endif

std::string machine_name(unsigned machine) {
  constexpr std::array<std::pair<unsigned, const char*>, 7> kNames = {{{EM_X86_64, "x86-64"},
                                                                       {EM_386, "i386"},
                                                                       {EM_AARCH64, "AArch64"},
                                                                       {EM_ARM, "ARM"},
                                                                       {EM_PPC64, "PowerPC64"},
                                                                       {EM_RISCV, "RISC-V"},
                                                                       {EM_CUDA, "a CUDA GPU"}}};
  for (const auto& [known, name] : kNames) {
    if (known == machine) return name;
  }
  return fmt::format("ELF machine {}", machine);
}

/// The fields that stand at the same place in files of 32 and 64 bits.
struct ElfStart {
  unsigned char ident[EI_NIDENT];
  std::uint16_t type;
  std::uint16_t machine;
};

const char* kind_name(unsigned type) {
  switch (type) {
    case ET_REL:
      return "an object file (link it with -shared)";
    case ET_EXEC:
      return "a program";
    case ET_CORE:
      return "a core dump";
    default:
      return "no shared library";
  }
}

}  // namespace

std::string elf_problem(std::string_view head) {
  if (head.empty()) return "the file is empty";
  if (head.substr(0, SELFMAG) != std::string_view(ELFMAG, SELFMAG)) {
    return "it is no shared library (no ELF header)";
  }
  ElfStart start{};
  if (head.size() < sizeof start) return "it is cut off";
  std::memcpy(&start, head.data(), sizeof start);
  if (start.ident[EI_DATA] != ELFDATA2LSB) return "it is built for a big-endian machine";
  if (start.machine != kOwnMachine) {
    return fmt::format("it is built for {}, this program for {}", machine_name(start.machine),
                       machine_name(kOwnMachine));
  }
  if (start.ident[EI_CLASS] != ELFCLASS64) return "it is built for 32 bits, this program for 64";
  if (start.type != ET_DYN) return fmt::format("it is {}", kind_name(start.type));
  return "";
}

}  // namespace attnbench
