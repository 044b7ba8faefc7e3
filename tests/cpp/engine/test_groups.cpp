#include "engine/groups.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "algorithms/options_by_name.h"
#include "algorithms/table.h"
#include "sentences.h"
#include "words.h"

namespace torchdion::engine {

namespace {

using algorithms::kDion;
using algorithms::kMuon;
using algorithms::Options;
using algorithms::options_of;

const algorithms::Algorithm& lion() { return algorithms::algorithm("lion"); }

GroupOptions with_multiplier(double multiplier) {
  GroupOptions options{algorithms::options_of(lion(), {})};
  options.values.set("lr", 0.5);
  options.values.set("lr_multiplier", multiplier);
  return options;
}

TEST(GroupOf, MultipliesItsRateWhetherThatIsANumberOrATensor) {
  GroupOptions options = with_multiplier(0.25);
  EXPECT_EQ(group_of(lion(), options, at::kCPU).options.number("lr"), 0.125);
  options.lr = at::full({1}, 2.0);
  options.weight_decay = at::full({}, 0.75);
  const Group group = group_of(lion(), options, at::kCPU);
  EXPECT_EQ(group.options.number("lr"), 0.5);
  EXPECT_EQ(group.options.number("weight_decay"), 0.75);
  EXPECT_FALSE(group.multipliers.defined());
}

TEST(GroupOf, LeavesARateThatCapturableStepsReadOnTheirDeviceThere) {
  GroupOptions options = with_multiplier(0.25);
  options.values.set("capturable", true);
  options.lr = at::full({}, 2.0);
  const Group there = group_of(lion(), options, at::kCPU);
  EXPECT_TRUE(there.multipliers.lr.is_same(options.lr));
  EXPECT_EQ(there.options.number("lr"), 0.25) << "what the tensor is multiplied by";
  const Group elsewhere = group_of(lion(), options, at::kCUDA);
  EXPECT_FALSE(elsewhere.multipliers.lr.defined());
  EXPECT_EQ(elsewhere.options.number("lr"), 0.5);
}

TEST(GroupOf, HasTheOptionsOfItsAlgorithmAlone) {
  const Group group = group_of(lion(), with_multiplier(1), at::kCPU);
  EXPECT_FALSE(group.options.has("rank_fraction"));
  EXPECT_EQ(group.options.pair("betas"), algorithms::Pair(0.95, 0.98));
  EXPECT_TRUE(algorithms::factors_of(*group.algorithm).empty());
  EXPECT_FALSE(group.takes_matrices());
}

std::string combined(algorithms::NamedValues values) {
  return sentence_of([&] { check_combinations(options_of(kDion, values), " (parameter group 2)"); });
}

TEST(GroupOptions, ThatExcludeEachOtherAreRefused) {
  EXPECT_EQ(combined({{"blocks", int64_t{3}}}), "");
  EXPECT_EQ(combined({{"fan_in_first", true}}), "");
  EXPECT_EQ(combined({{"blocks", int64_t{3}}, {"fan_in_first", true}}),
            "torchdion: blocks cannot be combined with fan_in_first (parameter group 2)");
  EXPECT_EQ(combined({{"capturable", true}}), "");
  EXPECT_EQ(
      combined({{"capturable", true}, {"orthonormalize", std::string_view("qr")}}),
      "torchdion: orthonormalize(Orthonormalize::qr) cannot be combined with capturable(true): the host would wait "
      "for the device (parameter group 2)");
}

TEST(GroupOptions, OfOwnersNeedAnAlgorithmThatCanHaveThem) {
  const auto owned = [](std::string_view algorithm, std::string_view scalar) {
    Options options;
    for (const algorithms::Option& option : algorithms::options()) options.set(option.name, option.initial);
    options.set("owners", std::string_view("shard"));
    options.set("algorithm", algorithm);
    options.set("scalar_algorithm", scalar);
    return sentence_of([&] { check_combinations(options, " (parameter group 2)"); });
  };
  EXPECT_EQ(owned("muon", "lion"), "");
  EXPECT_EQ(owned("adamw", "adamw"), "");
  for (const char* algorithm : {"dion", "double_dion", "demo"}) {
    EXPECT_EQ(owned(algorithm, "lion"), std::string("torchdion: owners(Owners::shard) cannot be combined with the "
                                                    "algorithm '") +
                                            algorithm + "', which needs all ranks (parameter group 2)");
  }
}

TEST(GroupOptions, ThatAreMissingAreCombinedWithNothing) {
  Options options;
  options.set("fan_in_first", true);
  EXPECT_EQ(sentence_of([&] { check_combinations(options, ""); }), "");
}

TEST(GroupOptions, OfTheOptimizerAreAlike) {
  const Options first = options_of(kMuon, {}), other_rate = options_of(kMuon, {{"lr", 0.5}}),
                other_policy = options_of(kMuon, {{"nonfinite", std::string_view("zero")}});
  EXPECT_EQ(sentence_of([&] { check_alike({&first, &other_rate}); }), "");
  EXPECT_EQ(sentence_of([&] {
              check_alike({&first, &first, &other_policy});
            }),
            "torchdion: nonfinite must be the same in all groups, got Nonfinite::zero (parameter group 2) beside "
            "Nonfinite::propagate");
  const Speaking speaking({"torchdion.Dion", Language::python});
  EXPECT_EQ(
      sentence_of([&] {
        check_alike({&first, &other_policy}, " of the state dict");
      }),
      "torchdion.Dion: nonfinite must be the same in all groups, got 'zero' (parameter group 1 of the state dict) "
      "beside 'propagate'");
}

}  // namespace

}  // namespace torchdion::engine
