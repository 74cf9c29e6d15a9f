#include "backends/forced_kernel.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "core/backend_name.h"
#include "core/error.h"

namespace attnbench {
namespace {

Problem decodes() {
  Problem p;
  p.scenario = p.case_name = "t";
  p.attention.num_heads = 4;
  p.attention.num_kv_heads = 2;
  p.attention.head_size = p.attention.v_head_size = 64;
  p.batch = {{1, 70}};
  p.kv_cache.num_blocks = 8;
  return p;
}

const DeviceFacts kGpu{90, 132, true};

}  // namespace

TEST_CASE("a name of a backend is cut at its last @") {
  CHECK(parse_backend_name("FLASH_ATTN").backend == "FLASH_ATTN");
  CHECK(parse_backend_name("FLASH_ATTN").kernel.empty());
  CHECK(parse_backend_name("FLASH_ATTN@general").backend == "FLASH_ATTN");
  CHECK(parse_backend_name("FLASH_ATTN@general").kernel == "general");
  CHECK(parse_backend_name("A@B@c").backend == "A@B");
  CHECK(backend_name("FLASH_ATTN", "general") == "FLASH_ATTN@general");
  CHECK(backend_name("FLASH_ATTN", "") == "FLASH_ATTN");
}

TEST_CASE("a backend held to a kernel is the backend under a name with the kernel") {
  const Backend& flash = *find_backend("FLASH_ATTN");
  const Backend& forced = with_forced_kernel(flash, "general");
  CHECK(full_name(flash) == "FLASH_ATTN");
  CHECK(full_name(forced) == "FLASH_ATTN@general");
  CHECK(forced.name() == "FLASH_ATTN");  // the rules of attention go by it
  CHECK(forced.forced_kernel() == "general");
  CHECK(&forced.unforced() == &flash);
  CHECK(forced.cache_layout() == flash.cache_layout());
  CHECK_FALSE(forced.is_default_for(AttentionType::kDecoder));
  CHECK(&with_forced_kernel(flash, "general") == &forced);
  CHECK(&with_forced_kernel(flash, "prefill") != &forced);
}

TEST_CASE("a backend held to a kernel refuses what the backend does, and the CPU") {
  const Backend& flash = *find_backend("FLASH_ATTN");
  const Backend& forced = with_forced_kernel(flash, "general");
  Problem problem = decodes();
  CHECK(forced.refusals(problem, kGpu).empty());
  CHECK(forced.refusals(problem, {}) ==
        std::vector<std::string>{"kernel general: the CPU has no kernels to choose from"});
  problem.attention.head_size = problem.attention.v_head_size = 1000;
  CHECK_FALSE(flash.refusals(problem, kGpu).empty());
  CHECK(forced.refusals(problem, kGpu) == flash.refusals(problem, kGpu));
}

TEST_CASE("who does not run this program's kernels refuses to be held to one") {
  const Problem problem = decodes();
  for (const char* name : {"REFERENCE", "CUDNN"}) {
    const std::vector<std::string> reasons =
        with_forced_kernel(*find_backend(name), "general").refusals(problem, kGpu);
    REQUIRE(reasons.size() == 1);
    CHECK(reasons[0] == "kernel general: " + std::string(name) +
                            " does not run this program's attention kernels");
  }
}

TEST_CASE("operations on the CPU take no kernel's name") {
  const std::unique_ptr<Ops> ops = make_cpu_ops(1, 20);
  CHECK_NOTHROW(ops->force_kernel(""));
  CHECK_THROWS_WITH_AS(ops->force_kernel("general"),
                       "kernel general: the CPU has no kernels to choose from", Error);
  CHECK(ops->num_sms() == 20);
}

TEST_CASE("a forwarding backend passes every function of Backend on, those with a default too") {
  const auto text_of = [](const std::string& name) {
    std::ifstream file(ATTNBENCH_SOURCE_DIR "/src/backends/" + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string header = text_of("backend.h");
  const std::string wrapper = text_of("forwarding_backend.h");
  const std::size_t begin = header.find("class Backend {");
  REQUIRE(begin != std::string::npos);
  const std::string declaration = header.substr(begin, header.find("\n};", begin) - begin);
  const std::regex function(R"(virtual [^~;{]*?(\w+)\()");
  int count = 0;
  for (std::sregex_iterator it(declaration.begin(), declaration.end(), function), end; it != end;
       ++it, ++count) {
    CAPTURE((*it)[1].str());
    CHECK(wrapper.find("inner_." + (*it)[1].str() + "(") != std::string::npos);
  }
  CHECK(count > 15);
}

}  // namespace attnbench
