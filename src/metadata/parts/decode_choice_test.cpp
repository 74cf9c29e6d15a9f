#include "metadata/parts/decode_choice.h"

#include <doctest/doctest.h>

#include <vector>

#include "metadata/parts/decode_plan.h"
#include "metadata/test_support.h"

namespace attnbench {
namespace {

using Lens = std::vector<std::int64_t>;

/// 32 heads on 8, 132 multiprocessors.
DecodeQuestion question(const Lens& lens) {
  DecodeQuestion q;
  q.seq_lens = lens;
  q.num_heads = 32;
  q.num_kv_heads = 8;
  q.num_sms = 132;
  return q;
}

Lens one_among(std::int64_t longest, std::size_t others, std::int64_t len) {
  Lens lens(others, len);
  lens.push_back(longest);
  return lens;
}

TEST_CASE("the number of splits is that of the device, or the one that is asked for") {
  for (const Lens& lens : {Lens{1024}, Lens{131072}, Lens(8, 1024), Lens(64, 8192)}) {
    DecodeQuestion q = question(lens);
    const DecodeChoice choice = choose_decode(q);
    CHECK(choice.num_splits ==
          choose_num_splits(static_cast<std::int64_t>(lens.size()), 8, lens.front(), 132));
    CHECK(choice.form == SplitForm::kSeparate);
    q.num_splits = 5;
    CHECK(choose_decode(q).num_splits == 5);
    CHECK(choose_decode(q).reason.find("as attention.num_splits asks for") != std::string::npos);
  }
}

TEST_CASE("what keeps nearly every multiprocessor busy without splits is not split") {
  const auto splits = [](std::int64_t requests) {
    return choose_num_splits(requests, 8, 8192, 132);
  };
  CHECK(splits(14) > 1);  // 112 parts
  CHECK(splits(15) == 1);
  CHECK(splits(24) == 1);
  CHECK(splits(33) == 1);  // 264
  CHECK(splits(34) == splits_of_waves(34, 8, 8192, 132));
  CHECK(splits(34) > 1);
  CHECK(splits(0) == 1);
  CHECK(splits_of_waves(16, 8, 8192, 132) == 2);
}

TEST_CASE("a choice says what parts there are, and what would do better where it may not") {
  const Lens one{1024};
  CHECK(choose_decode(question(one)).reason ==
        "32 parts for 264 places, none longer than 256 keys; combined by a second launch, unless "
        "attention.split_form is joined");
  const Lens skewed = one_among(131072, 63, 1024);
  CHECK(
      choose_decode(question(skewed)).reason ==
      "33 parts of equal load for each KV head: equal splits would leave one long request to few");
  DecodeQuestion equal = question(skewed);
  equal.may_plan = false;
  CHECK(choose_decode(equal).form == SplitForm::kSeparate);
  CHECK(choose_decode(equal).reason == "512 parts for 264 places, none longer than 131072 keys");
  const Lens even(64, 8192);
  CHECK(choose_decode(question(even)).reason ==
        "512 parts for 264 places, none longer than 8192 keys");
  CHECK(choose_decode(question({})).reason == "no decodes");
  CHECK(choose_decode(question({})).num_splits == 1);
}

TEST_CASE("splits are joined where that is asked for and there are several") {
  const Lens one{1024};
  DecodeQuestion q = question(one);
  q.form = SplitForm::kJoined;
  CHECK(choose_decode(q).form == SplitForm::kJoined);
  CHECK(choose_decode(q).num_splits == 4);
  q.num_splits = 200;
  CHECK(choose_decode(q).form == SplitForm::kJoined);
  q.num_splits = 1;
  CHECK(choose_decode(q).form == SplitForm::kSeparate);
  q.num_splits.reset();
  q.form = SplitForm::kSeparate;
  CHECK(choose_decode(q).form == SplitForm::kSeparate);
}

/// The same on a device with clusters.
DecodeQuestion on_hopper(const Lens& lens) {
  DecodeQuestion q = question(lens);
  q.sm = 90;
  return q;
}

TEST_CASE("where a cluster is faster than a second launch, splits are joined by themselves") {
  const auto splits = [](std::size_t requests, std::int64_t len) {
    return joined_splits(on_hopper(Lens(requests, len)));
  };
  // Clusters of 8 and 4 leave multiprocessors over: they may have three quarters of them.
  CHECK(splits(1, 1024) == 8);
  CHECK(splits(2, 1024) == 4);
  CHECK(splits(3, 1024) == 4);
  CHECK(splits(4, 1024) == 2);
  CHECK(splits(8, 1024) == 2);
  CHECK(splits(9, 1024) == 1);
  CHECK(splits(0, 1024) == 1);
  // From so many keys a part on nothing is gained, and sooner of 8-bit ones.
  CHECK(splits(1, 32768) == 8);
  CHECK(splits(1, 32769) == 1);
  CHECK(splits(3, 16384) == 4);
  CHECK(splits(3, 16385) == 1);
  const Lens long_one{16385};
  DecodeQuestion codes = on_hopper(long_one);
  codes.key_bytes = 1;
  CHECK(joined_splits(codes) == 1);
  const Lens short_one{16384};
  codes.seq_lens = short_one;
  CHECK(joined_splits(codes) == 8);
  // Eight parts alone do not saturate the memory.
  const Lens four_thousand{4096};
  const Lens one_more{4097};
  DecodeQuestion few = on_hopper(four_thousand);
  few.num_kv_heads = 1;
  CHECK(joined_splits(few) == 8);
  few.seq_lens = one_more;
  CHECK(joined_splits(few) == 1);
}

TEST_CASE("splits are not joined by themselves where it is not known to pay") {
  const Lens one{1024};
  CHECK(choose_decode(on_hopper(one)).form == SplitForm::kJoined);
  CHECK(choose_decode(on_hopper(one)).reason ==
        "64 parts in clusters of 8, none longer than 128 keys, joined within their launch");
  CHECK(choose_decode(question(one)).form == SplitForm::kSeparate);  // no clusters
  DecodeQuestion q = on_hopper(one);
  q.sm = 100;  // has clusters, but was not measured
  CHECK(choose_decode(q).form == SplitForm::kSeparate);
  q = on_hopper(one);
  q.head_size = 256;
  CHECK(choose_decode(q).form == SplitForm::kSeparate);
  q = on_hopper(one);
  q.may_join = false;
  CHECK(choose_decode(q).form == SplitForm::kSeparate);
  q = on_hopper(one);
  q.form = SplitForm::kSeparate;
  CHECK(choose_decode(q).form == SplitForm::kSeparate);
  CHECK(choose_decode(q).num_splits == 4);
  q = on_hopper(one);
  q.num_splits = 8;  // as asked for, in the usual form
  CHECK(choose_decode(q).form == SplitForm::kSeparate);
  // Rows of several tiles read their keys several times.
  q = on_hopper(one);
  q.max_query_len = 8;
  CHECK(joined_splits(q) == 8);  // 32 rows are one tile
  q.max_query_len = 9;
  CHECK(joined_splits(q) == 4);
  // One long request among short ones is the plan's.
  const Lens skewed = one_among(131072, 7, 1024);
  CHECK(choose_decode(on_hopper(skewed)).form == SplitForm::kPlanned);
}

TEST_CASE("a plan has two parts a multiprocessor over all KV heads and row tiles") {
  const Lens skewed = one_among(131072, 63, 1024);
  DecodeQuestion q = question(skewed);
  q.form = SplitForm::kPlanned;
  const DecodeChoice choice = choose_decode(q);
  CHECK(choice.form == SplitForm::kPlanned);
  CHECK(choice.num_splits == 1);
  CHECK(choice.num_parts == 33);
  CHECK(choice.reason ==
        "33 parts of equal load for each KV head: attention.split_form asks for them");
  CHECK(heads_decode_parts(132, 8, 32, 8) == 16);  // 32 rows
  CHECK(heads_decode_parts(132, 1, 64, 64) == 4);
  CHECK(heads_decode_parts(4, 8, 128, 16) == 1);
  CHECK(error_of([] { heads_decode_parts(132, 0, 32, 8); }) == "E-SHAPE");
  CHECK(error_of([] { heads_decode_parts(132, 1, 4, 8); }) == "E-SHAPE");
}

TEST_CASE("lengths are skewed where the longest piece is more than twice an even share") {
  CHECK(is_skewed(one_among(131072, 63, 1024), 1, 8, 132));
  CHECK_FALSE(is_skewed(Lens(64, 8192), 1, 8, 132));
  CHECK_FALSE(is_skewed(Lens{131072}, 33, 8, 132));
  CHECK_FALSE(is_skewed(Lens{64, 200}, 1, 8, 132));  // too short for it to count
  CHECK_FALSE(is_skewed(Lens{}, 1, 8, 132));
}

TEST_CASE("lengths that are about alike are split alike, however few places they take") {
  for (const std::int64_t len : {900, 2000, 8192}) {
    for (const std::size_t requests : {1u, 2u, 3u}) {
      CHECK(choose_decode(question(Lens(requests, len))).form == SplitForm::kSeparate);
      CHECK_FALSE(is_skewed(Lens(requests, len), 1, 8, 132));
    }
  }
  // Exactly twice the mean, and one key more.
  CHECK_FALSE(is_skewed(Lens{65536, 32768, 16384, 16384}, 1, 1, 132));
  CHECK(is_skewed(Lens{65537, 32768, 16384, 16384}, 1, 1, 132));
}

TEST_CASE("a plan leaves no place with much more than its share of a skewed batch") {
  std::vector<std::int32_t> lens(63, 1024);
  lens.push_back(131072);
  const DecodePlan plan = plan_decode(lens, 33, kDecodePlanHeadsOverhead);
  std::int64_t most = 0;
  std::int64_t total = 0;
  for (const DecodePart& part : plan.parts) {
    std::int64_t blocks = 0;
    for (std::int32_t r = part.begin_req; r <= part.end_req; ++r) {
      const std::int32_t begin = r == part.begin_req ? part.begin_block : 0;
      const std::int32_t all = plan.num_blocks[static_cast<std::size_t>(r)];
      blocks += (r == part.end_req ? part.end_block : all) - begin;
    }
    most = std::max(most, blocks);
    total += blocks;
  }
  CHECK(total == 63 * 16 + 2048);
  CHECK(most * 33 <= total * 107 / 100);
}

/// 32 heads on 8 of 128, 132 multiprocessors.
bool pays_apart(const std::vector<Request>& decodes, const std::vector<Request>& prefills,
                std::optional<std::int64_t> window = {}) {
  ApartQuestion q;
  q.decodes = decodes;
  q.prefills = prefills;
  q.window = window;
  q.num_heads = 32;
  q.num_kv_heads = 8;
  q.num_sms = 132;
  return decodes_pay_apart(q);
}

TEST_CASE("decodes have a call of their own where their tiles take longer than a launch") {
  using Batch = std::vector<Request>;
  const Batch prompts(4, {1024, 3072});
  CHECK(pays_apart(Batch(60, {1, 4096}), prompts));
  CHECK(pays_apart(Batch(32, {1, 2048}), {{2048, 2048}}));
  CHECK(pays_apart(Batch(128, {1, 1024}), Batch(2, {2048, 8192})));
  CHECK(pays_apart(Batch(256, {1, 512}), {{8192, 8192}}));
  // 185,000 keys of all KV heads.
  CHECK(pays_apart(Batch(23, {1, 1024}), prompts));
  CHECK_FALSE(pays_apart(Batch(22, {1, 1024}), prompts));
  CHECK_FALSE(pays_apart({{1, 128}}, {{8192, 8192}}));
  CHECK_FALSE(pays_apart(Batch(60, {1, 70}), prompts));
  CHECK_FALSE(pays_apart(Batch(60, {0, 0}), prompts));
}

TEST_CASE("decodes stay where multiprocessors are idle, unless one would end after all others") {
  using Batch = std::vector<Request>;
  // 4 tiles for each KV head, on 32 of 132 multiprocessors.
  const Batch prompt{{192, 16192}};
  CHECK_FALSE(pays_apart(Batch(10, {1, 4096}), prompt));
  CHECK(pays_apart({{1, 4096}}, {{512, 512}}));
  CHECK_FALSE(pays_apart({{1, 1024}}, {{512, 512}}));
  CHECK(pays_apart({{1, 131072}}, {{8192, 8192}}));
  CHECK(pays_apart({{1, 131072}}, {{192, 8192}}));
  CHECK_FALSE(pays_apart({{0, 131072}}, {{192, 8192}}));  // without a row
}

TEST_CASE("decodes stay whose rows see few keys, or that are as many rows as a tile") {
  using Batch = std::vector<Request>;
  const Batch prompts(4, {1024, 3072});
  CHECK_FALSE(pays_apart(Batch(60, {1, 4096}), prompts, 128));
  CHECK(pays_apart(Batch(60, {1, 4096}), prompts, 4096));
  CHECK(pays_apart(Batch(60, {4, 4096}), prompts));  // 16 rows
  CHECK_FALSE(pays_apart(Batch(60, {5, 4096}), prompts));
  CHECK_FALSE(pays_apart({}, prompts));
  CHECK_FALSE(pays_apart(Batch(60, {1, 4096}), {}));
  // Keys of half as many columns take half the time, a launch as much as before.
  ApartQuestion narrow;
  const Batch decodes(30, {1, 1024});
  narrow.decodes = decodes;
  narrow.prefills = prompts;
  narrow.num_heads = 32;
  narrow.num_kv_heads = 8;
  narrow.num_sms = 132;
  CHECK(decodes_pay_apart(narrow));
  narrow.columns = 128;
  CHECK_FALSE(decodes_pay_apart(narrow));
}

TEST_CASE("keys of 16 bits pay apart only where one decode would end last, by a list too") {
  using Batch = std::vector<Request>;
  const Batch prompts(4, {1024, 3072});
  const Batch prompt{{8192, 8192}};
  const auto question = [](const Batch& decodes, const Batch& prefills) {
    ApartQuestion q;
    q.decodes = decodes;
    q.prefills = prefills;
    q.key_bytes = 2;
    q.num_heads = 32;
    q.num_kv_heads = 8;
    q.num_sms = 132;
    return q;
  };
  const Batch even(60, {1, 4096});
  const Batch one_long{{1, 131072}};
  const Batch one_shorter{{1, 32768}};
  CHECK_FALSE(decodes_pay_apart(question(even, prompts)));
  CHECK_FALSE(decode_ends_last(question(even, prompts)));
  CHECK(decodes_pay_apart(question(one_long, prompt)));
  CHECK(decode_ends_last(question(one_long, prompt)));
  CHECK_FALSE(decode_ends_last(question(one_shorter, prompt)));
  CHECK_FALSE(decode_ends_last(question(Batch(12, {1, 8192}), Batch(2, {2048, 2048}))));
  CHECK_FALSE(decode_ends_last(question({{1, 16384}}, prompt)));
  CHECK(decode_ends_last(question(one_shorter, {{512, 512}})));
  // 64k keys among so many others that all multiprocessors have as much to do.
  Batch skewed(600, {1, 16384});
  skewed.push_back({1, 65536});
  CHECK_FALSE(decode_ends_last(question(skewed, prompt)));
}

}  // namespace
}  // namespace attnbench
