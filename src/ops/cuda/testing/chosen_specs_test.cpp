#include "ops/cuda/testing/chosen_specs_testing.h"

#include <doctest/doctest.h>

namespace attnbench::cuda {
namespace {

SpecForArch spec(const std::string& arch, const std::string& function, const std::string& size,
                 const std::string& element = "kBF16") {
  return {{"attention/a.cuh",
           function,
           {{"int kSize", size}, {"attn::Element kElement", element}},
           0,
           {}},
          arch};
}

const std::vector<SpecForArch> kSpecs{
    spec("sm_80", "one", "64"),  spec("sm_80", "one", "128"),          spec("sm_80", "two", "64"),
    spec("sm_90a", "one", "64"), spec("sm_90a", "one", "128", "kF16"), spec("sm_90a", "one", "64"),
};

std::vector<std::string> texts(const std::vector<SpecForArch>& specs) {
  std::vector<std::string> found;
  for (const SpecForArch& c : specs) {
    found.push_back(c.arch + entry_expression(c.spec) + program_text(c.spec));
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

TEST_CASE("chosen kernels and the others are all kernels, each as often as before") {
  for (const Chosen chosen : {Chosen::kFiles, Chosen::kEntries, Chosen::kNames}) {
    const SplitSpecs split = split_specs(kSpecs, chosen);
    std::vector<SpecForArch> both = split.chosen;
    both.insert(both.end(), split.others.begin(), split.others.end());
    CHECK(texts(both) == texts(kSpecs));
  }
}

TEST_CASE("of every device file a kernel is chosen, the first") {
  std::vector<SpecForArch> specs = kSpecs;
  specs[3].spec.source = specs[4].spec.source = "attention/b.cuh";
  const SplitSpecs split = split_specs(specs, Chosen::kFiles);
  CHECK(texts(split.chosen) == texts({specs[0], specs[3]}));
}

TEST_CASE("of every entry a kernel is chosen, the first") {
  const SplitSpecs split = split_specs(kSpecs, Chosen::kEntries);
  CHECK(texts(split.chosen) == texts({kSpecs[0], kSpecs[2]}));
}

TEST_CASE("kernels are chosen until every value that has a name is compiled somewhere") {
  const SplitSpecs split = split_specs(kSpecs, Chosen::kNames);
  std::set<std::string> wanted;
  for (const SpecForArch& c : kSpecs) wanted.merge(covered_by(c, Chosen::kNames));
  CHECK(wanted.size() == 2 + 2);
  std::set<std::string> found;
  for (const SpecForArch& c : split.chosen) found.merge(covered_by(c, Chosen::kNames));
  CHECK(found == wanted);
  // The fifth has the only kF16.
  CHECK(texts(split.chosen) == texts({kSpecs[0], kSpecs[2], kSpecs[4]}));
}

TEST_CASE("of other files than the one that is named no kernel is chosen") {
  std::vector<SpecForArch> specs = kSpecs;
  for (const std::size_t i : {0u, 1u, 3u}) specs[i].spec.source = "attention/b.cuh";
  const SplitSpecs split = split_specs(specs, Chosen::kEntries, "attention/b.cuh");
  CHECK(texts(split.chosen) == texts({specs[0]}));
  CHECK(split.others.size() == 5);
}

TEST_CASE("of no kernels none are chosen") {
  const SplitSpecs split = split_specs({}, Chosen::kEntries);
  CHECK(split.chosen.empty());
  CHECK(split.others.empty());
}

}  // namespace attnbench::cuda
