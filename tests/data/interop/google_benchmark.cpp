// Makes google_benchmark.json: SOURCES.md says how.
#include <benchmark/benchmark.h>

#include <numeric>
#include <vector>

static void BM_Sum(benchmark::State& state) {
  const std::vector<int> numbers(static_cast<std::size_t>(state.range(0)), 1);
  for (auto _ : state) {
    int sum = std::accumulate(numbers.begin(), numbers.end(), 0);
    benchmark::DoNotOptimize(sum);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) *
                          static_cast<std::int64_t>(sizeof(int)));
}
BENCHMARK(BM_Sum)->Arg(1000)->Arg(100000)->Repetitions(3);

static void BM_Broken(benchmark::State& state) {
  state.SkipWithError("no device");
  for (auto _ : state) {
  }
}
BENCHMARK(BM_Broken);

BENCHMARK_MAIN();
