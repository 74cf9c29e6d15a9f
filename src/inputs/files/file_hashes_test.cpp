#include "inputs/files/file_hashes.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/sha256.h"

namespace attnbench {

TEST_CASE("the files of a problem are known by what they hold") {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("attnbench_file_hashes_" + std::to_string(getpid()));
  fs::create_directories(folder);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
    return (folder / name).string();
  };
  const std::string tensors("tensors\0of bytes", 16);
  Problem problem;
  problem.inputs.file = write("in.safetensors", tensors);
  problem.kv_cache.scale_file = write("scales.json", "{}");
  FileHashes hashes;
  using Hashes = std::map<std::string, std::string>;
  CHECK(hashes.of(problem) ==
        Hashes{{"inputs.file", sha256_hex(tensors)}, {"kv_cache.scale_file", sha256_hex("{}")}});
  problem.kv_cache.scale_file.reset();
  problem.inputs.file = write("empty", "");
  CHECK(hashes.of(problem) == Hashes{{"inputs.file", sha256_hex("")}});
  problem.inputs.file = (folder / "nowhere").string();
  CHECK(hashes.of(problem).empty());
  fs::remove_all(folder);
}

}  // namespace attnbench
