#include "measure/cpu_measure.h"

#include <doctest/doctest.h>

#include <fstream>

#include "core/test_folder.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

void write_cache(const fs::path& folder, const std::string& level, const std::string& type,
                 const std::string& size, const std::string& shared) {
  fs::create_directories(folder);
  std::ofstream(folder / "level") << level << "\n";
  std::ofstream(folder / "type") << type << "\n";
  std::ofstream(folder / "size") << size << "\n";
  std::ofstream(folder / "shared_cpu_list") << shared << "\n";
}

}  // namespace

TEST_CASE("cache sizes are read with their units") {
  CHECK(parse_cache_size("32768K") == std::size_t{32} << 20);
  CHECK(parse_cache_size("2M") == std::size_t{2} << 20);
  CHECK(parse_cache_size("512") == std::size_t{512});
  CHECK_FALSE(parse_cache_size(""));
  CHECK_FALSE(parse_cache_size("K"));
  CHECK_FALSE(parse_cache_size("0K"));
  CHECK_FALSE(parse_cache_size("12Q"));
}

TEST_CASE("shared caches count once and level 1 does not count") {
  const TestFolder sysfs;
  for (const char* cpu : {"cpu0", "cpu1"}) {
    const fs::path cache = sysfs.path() / cpu / "cache";
    write_cache(cache / "index0", "1", "Data", "32K", cpu);
    write_cache(cache / "index2", "2", "Unified", "1024K", cpu);  // private
    write_cache(cache / "index3", "3", "Unified", "32M", "0-1");
  }
  fs::create_directories(sysfs.path() / "cpufreq" / "cache");
  CHECK(total_cache_bytes(sysfs.path()) == std::size_t{34} << 20);
}

namespace {

class CountedFlusher final : public CacheFlusher {
 public:
  explicit CountedFlusher(L2Mode leaves) : leaves_(leaves) {}
  void flush() override { ++count; }
  L2Mode leaves() const override { return leaves_; }
  std::size_t size_bytes() const override { return std::size_t{1} << 16; }
  int count = 0;

 private:
  L2Mode leaves_;
};

}  // namespace

TEST_CASE("caches of a CPU are clean where a flush that they are read behind leaves them cold") {
  CountedFlusher cold(L2Mode::kCold), unproven(L2Mode::kWarm);
  const auto clean = make_cpu_clean_flusher(cold);
  clean->flush();
  CHECK(cold.count == 1);
  CHECK(clean->leaves() == L2Mode::kClean);
  CHECK(clean->size_bytes() == cold.size_bytes());
  CHECK(make_cpu_clean_flusher(unproven)->leaves() == L2Mode::kWarm);
}

TEST_CASE("instructions of a CPU that multiply faster than f32 raise what is believed of it") {
  CHECK(faster_units("fpu sse2 avx2 fma", true) == 1);
  CHECK(faster_units("avx512f avx512_bf16", false) == 2);
  CHECK(faster_units("avx512f avx512_bf16 amx_bf16", false) == 32);
  CHECK(faster_units("avx512_vnni", false) == 1);
  CHECK(faster_units("avx512_vnni", true) == 4);
  CHECK(faster_units("amx_int8 amx_bf16", true) == 64);
}

TEST_CASE("of two measurements each larger rate counts") {
  const CpuCeilings best = best_of({1, 40}, {2, 30});
  CHECK(best.gflops == 2);
  CHECK(best.gbps == 40);
}

}  // namespace attnbench
