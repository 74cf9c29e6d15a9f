#include "jit/kernel_spec.h"

#include <doctest/doctest.h>

#include "core/error.h"

namespace attnbench {
namespace {

KernelSpec prefill() {
  KernelSpec spec;
  spec.source = "attention/prefill.cuh";
  spec.function = "attn::prefill";
  spec.constants = {{"int kHeadSize", "128"}, {"using Query", "__nv_bfloat16"}};
  spec.name = "prefill d128";
  return spec;
}

}  // namespace

TEST_CASE("the program of a spec includes its device file and names every choice in Config") {
  CHECK(program_text(prefill()) ==
        "#include \"kernels/attention/prefill.cuh\"\n"
        "\n"
        "struct Config {\n"
        "  static constexpr int kHeadSize = 128;\n"
        "  using Query = __nv_bfloat16;\n"
        "};\n");
  CHECK(entry_expression(prefill()) == "attn::prefill<Config>");
}

TEST_CASE("the name for people does not change the program, every choice does") {
  KernelSpec renamed = prefill();
  renamed.name = "another name";
  CHECK(program_text(renamed) == program_text(prefill()));
  KernelSpec other = prefill();
  other.constants[0].second = "64";
  CHECK(program_text(other) != program_text(prefill()));
}

TEST_CASE("a spec without source, function, name or value of a constant is refused") {
  KernelSpec no_source = prefill();
  no_source.source.clear();
  CHECK_THROWS_AS(program_text(no_source), Error);
  KernelSpec no_function = prefill();
  no_function.function.clear();
  CHECK_THROWS_AS(program_text(no_function), Error);
  KernelSpec no_value = prefill();
  no_value.constants.emplace_back("int kTileM", "");
  CHECK_THROWS_AS(program_text(no_value), Error);
  KernelSpec no_name = prefill();
  no_name.constants.emplace_back("", "4");
  CHECK_THROWS_AS(program_text(no_name), Error);
}

}  // namespace attnbench
