// Kernels compile for the architectures that are tested, without spills that its spec does not
// declare: by default a choice of the kernels of every case, under ATTNBENCH_COMPILE_TESTS=others,
// as the test cuda.thorough has it, all the others.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string_view>

#include "core/system/parallel.h"
#include "jit/kernel_store.h"
#include "jit/nvrtc_compiler.h"
#include "ops/cuda/attention/attend_latent_cases_testing.h"
#include "ops/cuda/attention/decode_int8_cases_testing.h"
#include "ops/cuda/attention/hopper_cases_testing.h"
#include "ops/cuda/attention/spec.h"
#include "ops/cuda/matmul/warpgroup_probe_testing.h"
#include "ops/cuda/measure/screen.h"
#include "ops/cuda/move/tma_copy_testing.h"
#include "ops/cuda/planted_fault.h"
#include "ops/cuda/recording_ops.h"
#include "ops/cuda/sample/sample_kernels.h"
#include "ops/cuda/testing/all_cases_testing.h"
#include "ops/cuda/testing/chosen_specs_testing.h"
#include "ops/cuda/zone_scan.h"
#include "ops/forwarding_ops.h"

namespace attnbench::cuda {
namespace {

std::vector<KernelSpec> specs_on(int sm, const std::vector<OperationCase>& cases) {
  std::vector<KernelSpec> specs;
  const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(sm), specs);
  for (const OperationCase& c : cases) c.run(*ops);
  return specs;
}

/// Notes which operations are called.
class CalledOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  std::set<std::string_view> called;

#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void name parameters override {                        \
    called.insert(#name);                                \
    inner().name arguments;                              \
  }
#include "ops/operations.def"
};

/// What the choice of a tile leaves for the shared memory that a kernel declares itself.
std::optional<int> static_room(const KernelSpec& spec) {
  if (spec.source == "attention/general.cuh") return kGeneralStaticSharedBytes;
  if (spec.source == "attention/prefill.cuh" || spec.source == "attention/decode/decode.cuh" ||
      spec.source == "attention/decode/forms.cuh") {
    return kTiledStaticSharedBytes;
  }
  return std::nullopt;
}

/// Whether this run compiles what is left out by default.
bool compiles_others() {
  const char* const value = std::getenv("ATTNBENCH_COMPILE_TESTS");
  if (value == nullptr) return false;
  if (std::string_view(value) == "others") return true;
  FAIL("ATTNBENCH_COMPILE_TESTS: expected 'others', found '" << std::string(value) << "'");
  return false;
}

/// 0 is all cores. Why one for the few by default: other tests run beside them, which leave no core
/// idle while the last kernel of a case is compiled.
int compile_threads() {
#ifdef __SANITIZE_THREAD__
  // It does not see how the compiler, which is not instrumented, keeps its threads apart.
  return 1;
#else
  return compiles_others() ? 0 : 1;
#endif
}

void check_compiled(const SpecForArch& c, const CompiledKernel& compiled) {
  CAPTURE(c.spec.name);
  CAPTURE(c.arch);
  CHECK(compiled.registers > 0);
  CHECK(compiled.spill_bytes <= c.spec.allowed_spill_bytes);
  CHECK_FALSE(compiled.has_serialised_products);
  if (const auto room = static_room(c.spec)) CHECK(compiled.shared_bytes <= *room);
}

/// Kernels for sm_80 and sm_90a, without spills that a spec does not declare: those
/// that `chosen` takes, or all but those. `specs_for` gives the specs of an architecture.
/// With `source` only kernels of that file are chosen: the entries of others have cases of their
/// own.
void check_compiles(const std::function<std::vector<KernelSpec>(int sm)>& specs_for,
                    Chosen chosen = Chosen::kFiles, const std::string& source = "") {
  if (!find_nvrtc().compiler) {
    MESSAGE("skipped: " << find_nvrtc().missing);
    return;
  }
  // What the ctest entries with and without the others select.
  CHECK(std::string_view(doctest::getContextOptions()->currentTest->m_test_suite) == "compile");
  std::vector<SpecForArch> all;
  for (const int sm : {80, 90}) {
    for (KernelSpec& spec : specs_for(sm)) all.push_back({std::move(spec), arch_of_sm(sm)});
  }
  CHECK_FALSE(all.empty());
  const SplitSpecs split = split_specs(std::move(all), chosen, source);
  const std::vector<SpecForArch>& wanted = compiles_others() ? split.others : split.chosen;
  const auto cache = std::filesystem::temp_directory_path() /
                     ("attnbench-compile-test-" + std::to_string(getpid()));
  const std::unique_ptr<KernelStore> store = make_kernel_store(cache.string());
  std::vector<const StoredKernel*> kernels(wanted.size());
  ThreadPool(compile_threads())
      .parallel_for(static_cast<std::int64_t>(wanted.size()), [&](std::int64_t i, int) {
        const SpecForArch& c = wanted[static_cast<std::size_t>(i)];
        kernels[static_cast<std::size_t>(i)] = &store->get(c.spec, c.arch);
      });
  for (std::size_t i = 0; i < wanted.size(); ++i) check_compiled(wanted[i], kernels[i]->compiled);
  std::filesystem::remove_all(cache);
}
void check_compiles(const std::vector<OperationCase>& cases, Chosen chosen,
                    const std::string& source = "") {
  check_compiles([&](int sm) { return specs_on(sm, cases); }, chosen, source);
}

/// By default the case of that kernel without more features stands for its file.
void check_more_hopper_prefill(const std::function<std::vector<OperationCase>()>& cases) {
  check_compiles(
      [&](int sm) {
        std::vector<KernelSpec> specs;
        if (sm < 90) return specs;
        specs = specs_on(sm, cases());
        for (const KernelSpec& spec : specs) {
          // What puts values into pages of their own is in front of it.
          if (spec.function != "attn::gather_mla") {
            CHECK(spec.source == "attention/hopper/prefill.cuh");
          }
        }
        return specs;
      },
      Chosen::kNothing);
}

/// What the covering cases of the operations launch, and which operations they call. One run for
/// all tests: to draw their operands takes seconds.
struct CoveringRun {
  std::vector<KernelSpec> specs;
  std::set<std::string_view> called;
};
const CoveringRun& covering_run() {
  static const CoveringRun run = [] {
    CoveringRun made;
    const std::unique_ptr<Ops> recording = make_recording_ops(target_of_sm(90), made.specs);
    CalledOps ops(*recording);
    for (const OperationCase& c : all_operation_cases()) c.run(ops);
    made.called = ops.called;
    return made;
  }();
  return run;
}

}  // namespace

TEST_CASE("the covering cases of the operations launch something, each spec once") {
  const std::vector<KernelSpec>& specs = covering_run().specs;
  CHECK(specs.size() > 20);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    CHECK_FALSE(specs[i].name.empty());
    for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(specs[i] == specs[j]);
  }
}

TEST_CASE("every operation of the table has a covering case") {
  for (const std::string_view name : kOperationNames) {
    CAPTURE(name);
    CHECK(covering_run().called.contains(name));
  }
}

TEST_SUITE_BEGIN("compile");

TEST_CASE("kernels that move, quantise and multiply compile without spills") {
  std::vector<OperationCase> cases = operation_cases();
  add_coverage_cases(cases);
  add_indexer_cases(cases);
  check_compiles(cases, Chosen::kEntries);
}

TEST_CASE("the tiled attention kernels compile without undeclared spills") {
  std::vector<OperationCase> cases;
  add_attend_cases(cases);
  check_compiles(cases, Chosen::kFiles);
}

TEST_CASE("the Hopper prefill kernel compiles, without undeclared spills or products that wait") {
  check_compiles([](int sm) {
    std::vector<KernelSpec> specs;
    if (sm < 90) return specs;  // it has no such instructions
    return specs_on(sm, hopper_operation_cases());
  });
}

TEST_CASE("forms of features of the Hopper prefill kernel compile without undeclared spills") {
  check_more_hopper_prefill([] {
    std::vector<OperationCase> cases = hopper_feature_operation_cases();
    std::ranges::move(hopper_int8_form_cases(), std::back_inserter(cases));
    return cases;
  });
}

TEST_CASE("the Hopper prefill kernel over e4m3 compiles, without undeclared spills or waits") {
  check_more_hopper_prefill(hopper_code_operation_cases);
}

TEST_CASE(
    "the kernel of a list of tiles compiles for Hopper without spills or products that wait") {
  check_compiles([](int sm) {
    std::vector<KernelSpec> specs;
    if (sm < 90) return specs;
    std::vector<OperationCase> cases;
    add_tile_cases(cases);
    specs = specs_on(sm, cases);
    CHECK(std::ranges::count(specs, "attention/hopper/tiles.cuh", &KernelSpec::source) >= 6);
    return specs;
  });
}

TEST_CASE("products of a warpgroup compile for Hopper, in every width") {
  check_compiles([](int sm) {
    std::vector<KernelSpec> specs;
    if (sm < 90) return specs;
    for (const WarpgroupProbe& probe : warpgroup_probes()) {
      specs.push_back(warpgroup_probe_spec(probe));
    }
    return specs;
  });
}

TEST_CASE("the kernel of latents compiles for Hopper without undeclared spills") {
  check_compiles([](int sm) {
    std::vector<KernelSpec> specs;
    if (sm < 90) return specs;  // it has no such instructions
    std::vector<OperationCase> cases;
    add_latent_attend_cases(cases);
    const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(sm), specs);
    ops->force_kernel(kLatentKernel);
    for (const OperationCase& c : cases) c.run(*ops);
    CHECK(std::ranges::count(specs, "attention/latent/latent.cuh", &KernelSpec::source) >= 8);
    return specs;
  });
}

TEST_CASE("decodes in tiles of up to 128 rows compile without undeclared spills") {
  check_compiles([](int sm) {
    std::vector<KernelSpec> specs;
    std::vector<OperationCase> cases;
    add_attend_cases(cases, many_row_cases());
    const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(sm), specs);
    for (const char* forced : {"decode:rows=32", "decode:rows=64", "decode:rows=128"}) {
      ops->force_kernel(forced);
      for (const OperationCase& c : cases) c.run(*ops);
    }
    const auto has = [&](const char* row_warps) {
      return std::ranges::any_of(specs, [&](const KernelSpec& spec) {
        return std::ranges::find(spec.constants,
                                 std::pair<std::string, std::string>("int kRowWarps", row_warps)) !=
               spec.constants.end();
      });
    };
    for (const char* row_warps : {"1", "2", "4", "8"}) CHECK(has(row_warps));
    return specs;
  });
}

TEST_CASE("decodes by int8 scores compile without spills, and save in one launch") {
  check_compiles([](int sm) {
    const std::vector<KernelSpec> specs = specs_on(sm, int8_decode_operation_cases());
    for (const char* entry :
         {"decode", "decode_splits", "decode_saving", "decode_splits_saving", "decode_joined"}) {
      CAPTURE(entry);
      CHECK(std::ranges::count(specs, std::string("attn::") + entry, &KernelSpec::function) > 0);
    }
    return specs;
  });
}

TEST_CASE("the kernel of gathered latents compiles for Hopper without undeclared spills") {
  check_compiles([](int sm) {
    std::vector<KernelSpec> specs;
    if (sm < 90) return specs;
    std::vector<OperationCase> cases;
    add_gathered_attend_cases(cases);
    const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(sm), specs);
    for (const char* forced : {kGatheredKernel, "hopper_gathered:pair=1"}) {
      ops->force_kernel(forced);
      for (const OperationCase& c : cases) c.run(*ops);
    }
    CHECK(std::ranges::count(specs, "attention/latent/gathered.cuh", &KernelSpec::source) >= 9);
    CHECK(std::ranges::any_of(
        specs, [](const KernelSpec& spec) { return spec.name.ends_with(", in pairs"); }));
    return specs;
  });
}

TEST_CASE("the kernel of latents in e4m3 compiles for Hopper without undeclared spills") {
  check_compiles([](int sm) {
    std::vector<KernelSpec> specs;
    if (sm < 90) return specs;
    std::vector<OperationCase> cases;
    add_latent_codes_cases(cases);
    const std::unique_ptr<Ops> ops = make_recording_ops(target_of_sm(sm), specs);
    ops->force_kernel(kLatentCodesKernel);
    for (const OperationCase& c : cases) c.run(*ops);
    for (const char* entry : {"latent_codes", "latent_codes_splits", "latent_codes_plan"}) {
      CAPTURE(entry);
      CHECK(std::ranges::count(specs, std::string("attn::") + entry, &KernelSpec::function) > 0);
    }
    return specs;
  });
}

TEST_CASE("kernels of f32 attention compile without undeclared spills") {
  std::vector<OperationCase> cases;
  add_f32_attend_cases(cases);
  check_compiles(cases, Chosen::kFiles);
}

TEST_CASE("kernels of planted faults compile without spills") {
  check_compiles([](int) {
    return std::vector<KernelSpec>{fault_spec(Fault::kHang), fault_spec(Fault::kCrash),
                                   fault_spec(Fault::kOverrun)};
  });
}

TEST_CASE("kernels around timed samples compile without spills") {
  check_compiles([](int) { return sample_specs(); });
}

TEST_CASE("the screening kernels compile without spills") {
  check_compiles([](int) {
    std::vector<KernelSpec> specs;
    for (const int rows : {1, 64}) {
      for (const int columns : {64, 128}) {
        for (const bool writes_rows : {false, true}) {
          const std::vector<KernelSpec> more =
              screen_specs(rows, columns, {attn::kScreenOperandElements, writes_rows});
          specs.insert(specs.end(), more.begin(), more.end());
        }
      }
    }
    specs.push_back(screen_compare_rows_spec());
    const std::vector<KernelSpec> latent = latent_screen_specs();
    specs.insert(specs.end(), latent.begin(), latent.end());
    return specs;
  });
}

TEST_CASE("the kernel that looks through guard zones compiles without spills") {
  check_compiles([](int) { return std::vector<KernelSpec>{zone_scan_spec()}; });
}

TEST_CASE("the copy by tensor maps compiles for Hopper without spills") {
  check_compiles([](int sm) {
    std::vector<KernelSpec> specs;
    if (sm < 90) return specs;  // it has no such instructions
    for (const TmaCopy& copy : tma_copies()) specs.push_back(tma_copy_spec(copy));
    return specs;
  });
}

// Beside it what the launchers take in its place for some of the cases.
TEST_CASE("the general attention kernel compiles without spills") {
  std::vector<OperationCase> cases;
  add_general_attend_cases(cases);
  check_compiles(cases, Chosen::kFiles, "attention/general.cuh");
}

TEST_SUITE_END();

}  // namespace attnbench::cuda
