#include "plugin/plugin_library.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <elf.h>
#include <fmt/format.h>

#include "core/error.h"
#include "core/sha256.h"

namespace attnbench {
namespace {

constexpr const char* kEntry = "attnbench_backend";
/// More than any library has: a plugin that ignores its index would never end.
constexpr std::uint32_t kMostBackends = 1000;
/// Structs of version 2 are those of version 1 with fields at the end.
constexpr std::uint32_t kOldestAbi = 1;
/// What every plugin of ABI version 1 has at least.
constexpr std::size_t kLeastTable = offsetof(AttnbenchBackend, destroy) + sizeof(void (*)(void*));

std::string where_of(const std::string& path) { return fmt::format("--plugin '{}'", path); }

std::string read_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    fail(ErrorKind::kIo, "{}: it is a folder", where_of(path));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in) fail(ErrorKind::kIo, "{}: cannot read it: {}", where_of(path), std::strerror(errno));
  return std::move(text).str();
}

/// Names are part of result ids, which are shell words, parts of file names and of regular
/// expressions.
bool is_name(const char* text) {
  constexpr const char* kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:";
  return text != nullptr && *text != '\0' && text[std::strspn(text, kAllowed)] == '\0';
}

/// Looks only at the first two fields: of a table of another version nothing else has a known
/// place.
void check_abi(const AttnbenchBackend& table, const std::string& where) {
  if (table.abi_version < kOldestAbi || table.abi_version > ATTNBENCH_ABI_VERSION) {
    fail(
        ErrorKind::kFormat,
        "{}: it speaks version {} of the plugin interface, this program versions {} to {}: compile "
        "it with this program's attnbench_backend.h",
        where, table.abi_version, kOldestAbi, ATTNBENCH_ABI_VERSION);
  }
  if (table.struct_size < kLeastTable) {
    fail(ErrorKind::kFormat,
         "{}: struct_size is {}, expected sizeof(AttnbenchBackend), at least {}", where,
         table.struct_size, kLeastTable);
  }
}

template <typename T>
void expect_one_of(T value, T count, const char* field, const std::string& where) {
  if (value < count) return;
  fail(ErrorKind::kValue, "{}: {} is {}, expected less than {}", where, field, value, count);
}

/// Everything that can be told before a case is there. Unknown bits of masks are let through: a
/// newer plugin may say more than this program uses.
void check_values(const AttnbenchBackend& table, const std::string& where) {
  if (!is_name(table.name)) {
    fail(ErrorKind::kValue, "{}: name: expected letters, digits and any of '._-:', found '{}'",
         where, table.name == nullptr ? "(null)" : table.name);
  }
  const std::string whose = fmt::format("{}: backend '{}'", where, table.name);
  if (table.version == nullptr) fail(ErrorKind::kValue, "{}: version is missing", whose);
  if (table.prepare == nullptr) fail(ErrorKind::kValue, "{}: prepare is missing", whose);
  if (table.run == nullptr) fail(ErrorKind::kValue, "{}: run is missing", whose);
  if (table.devices == 0) fail(ErrorKind::kValue, "{}: devices: expected at least one", whose);
  if (table.dtypes == 0) fail(ErrorKind::kValue, "{}: dtypes: expected at least one", whose);
  if (table.attention_types == 0) {
    fail(ErrorKind::kValue, "{}: attention_types: expected at least one", whose);
  }
  expect_one_of(table.kv, ATTNBENCH_KV_PAGED_INTERLEAVED + 1, "kv", whose);
  expect_one_of(table.lse, ATTNBENCH_LSE_BASE_2 + 1, "lse", whose);
  expect_one_of(table.empty_rows, ATTNBENCH_EMPTY_PLUS_INF + 1, "empty_rows", whose);
  expect_one_of(table.lse_axes, ATTNBENCH_LSE_TH + 1, "lse_axes", whose);
  expect_one_of(table.operations, 2 * ATTNBENCH_OP_INDEX_TOPK, "operations", whose);
  if ((table.attention_types & ATTNBENCH_MLA_PREFILL) != 0) {
    if ((table.attention_types & ATTNBENCH_MLA) != 0) {
      fail(ErrorKind::kValue,
           "{}: attention_types: expected ATTNBENCH_MLA or ATTNBENCH_MLA_PREFILL, "
           "found both: they are two backends",
           whose);
    }
    if (table.lse != ATTNBENCH_LSE_NATURAL || table.lse_axes != ATTNBENCH_LSE_HT) {
      fail(ErrorKind::kValue,
           "{}: expected ATTNBENCH_LSE_NATURAL and ATTNBENCH_LSE_HT with ATTNBENCH_MLA_PREFILL",
           whose);
    }
  }
  const bool takes_operations = (table.attention_types & ATTNBENCH_OP) != 0;
  if (takes_operations == (table.operations != 0)) return;
  fail(ErrorKind::kValue, "{}: {}", whose,
       takes_operations ? "attention_types has ATTNBENCH_OP, operations none"
                        : "operations without ATTNBENCH_OP in attention_types");
}

}  // namespace

PluginTable check_table(const AttnbenchBackend* table, const std::string& where) {
  check_abi(*table, where);
  // Only what the plugin was compiled with is copied, the rest stays 0: an older plugin has a
  // shorter table, and 0 in a later field means what it meant before there was the field.
  PluginTable checked;
  checked.self = table;
  std::memcpy(&checked.table, table,
              std::min<std::size_t>(table->struct_size, sizeof checked.table));
  check_values(checked.table, where);
  return checked;
}

std::string library_bytes(const std::string& path) {
  std::string bytes = read_file(path);
  const std::string problem = elf_problem(std::string_view(bytes).substr(0, 64));
  if (!problem.empty()) fail(ErrorKind::kFormat, "{}: {}", where_of(path), problem);
  return bytes;
}

PluginLibrary::PluginLibrary(std::string path) : path_(std::move(path)) {
  sha256_ = sha256_hex(library_bytes(path_));
  // Loading runs the library's constructors, which may print and may change how numbers are
  // rounded.
  const PluginFloats floats = current_floats();
  const PluginCall call(floats);
  const StdoutToStderr redirected;
  // Why absolute: a name without a slash would be looked for where the system's libraries are.
  library_ = DynamicLibrary({std::filesystem::absolute(path_).string()});
  if (!library_.is_open()) {
    fail(ErrorKind::kFormat, "{}: cannot be loaded: {}", where_of(path_), library_.problem());
  }
  read_tables();
  for (PluginTable& table : tables_) table.floats = floats;
}

void PluginLibrary::read_tables() {
  const std::string where = where_of(path_);
  const AttnbenchBackend* (*entry)(std::uint32_t) = nullptr;
  if (!library_.bind(entry, kEntry)) {
    fail(ErrorKind::kFormat,
         "{}: it exports no function {}(); a C++ plugin includes attnbench_backend.h where it "
         "defines it",
         where, kEntry);
  }
  for (std::uint32_t index = 0; const AttnbenchBackend* table = entry(index); ++index) {
    if (index == kMostBackends) {
      fail(ErrorKind::kValue, "{}: {}() has no end: expected NULL after the last backend", where,
           kEntry);
    }
    tables_.push_back(check_table(table, where));
    for (std::size_t i = 0; i + 1 < tables_.size(); ++i) {
      if (std::strcmp(tables_[i].table.name, table->name) != 0) continue;
      fail(ErrorKind::kValue, "{}: two backends have the name '{}'", where, table->name);
    }
  }
  if (tables_.empty()) {
    fail(ErrorKind::kValue, "{}: {}(0) returned NULL: it has no backend", where, kEntry);
  }
}

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
#error "plugin_library.cpp: which machine is this?"
#endif

/// As people call it, for machines that a user may have confused.
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
