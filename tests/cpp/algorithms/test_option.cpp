#include "algorithms/option.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "algorithms/all.h"
#include "algorithms/options_by_name.h"
#include "words.h"

namespace torchdion::algorithms {

namespace {

enum class Side { automatic, left };
constexpr Choice kSides[] = {{"auto", "automatic", Side::automatic}, {"left", "left", Side::left}};
constexpr Choice kNames[] = {{"lion"}, {"adamw"}};
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

// One option of each kind, what a sentence calls its values, and one that it takes as each language writes it.
struct KindCase {
  const char* name;
  Option option;
  const char *in_cpp, *in_python;
  Value value;
  const char *shown_in_cpp, *shown_in_python;
};

Option of(Allowed allowed) { return {"option", {}, allowed, "of the tests"}; }

Option rate() {
  Option option = of(kNotNegative);
  option.may_be_tensor = true;
  return option;
}

class OptionOfAKind : public testing::TestWithParam<KindCase> {};

TEST_P(OptionOfAKind, IsSpokenOfAsEachLanguageWritesIt) {
  const KindCase& c = GetParam();
  for (const bool python : {false, true}) {
    const Speaking speaking({"a front", python ? Language::python : Language::cpp});
    const std::string words = python ? c.in_python : c.in_cpp, value = python ? c.shown_in_python : c.shown_in_cpp;
    EXPECT_EQ(words_of(c.option), words);
    EXPECT_EQ(shown(c.option, c.value), value);
    EXPECT_EQ(assigned(c.option, c.value), python ? "option=" + value : "option(" + value + ")");
    EXPECT_EQ(refusal(c.option, "that", " (parameter group 2)"),
              "a front: option must be " + words + ", got that (parameter group 2)");
  }
}

TEST_P(OptionOfAKind, TakesItsValuesAndNoneWhereItMayBeNone) {
  const KindCase& c = GetParam();
  EXPECT_EQ(accepted(c.option, c.value), c.value);
  EXPECT_EQ(accepted(c.option, {}).has_value(), c.option.allowed.or_none);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, OptionOfAKind,
    testing::Values(
        KindCase{"Flag", of(kFlag), "true or false", "True or False", true, "true", "True"},
        KindCase{"AnyInteger", of(kAnyInteger), "an integer of 64 bits", "an integer of 64 bits", int64_t{-3}, "-3",
                 "-3"},
        KindCase{"Counting", of(kCounting), "an integer ≥ 1", "an integer ≥ 1", int64_t{1}, "1", "1"},
        KindCase{"BelowHundred", of(kBelowHundred), "an integer in [1, 99]", "an integer in [1, 99]", int64_t{99}, "99",
                 "99"},
        KindCase{"DimsOrNone", of(kDimsOrNone), "none or an integer ≥ 0", "None or an integer ≥ 0", int64_t{0}, "0",
                 "0"},
        KindCase{"NotNegative", of(kNotNegative), "a finite number ≥ 0", "a finite number ≥ 0", 0.0, "0", "0"},
        KindCase{"Rate", rate(), "a finite number ≥ 0", "a finite number ≥ 0 (a Tensor option must be 1-element)", 1e-8,
                 "1e-08", "1e-08"},
        KindCase{"AtLeastOne", of(kAtLeastOne), "a finite number ≥ 1", "a finite number ≥ 1", 1.25, "1.25", "1.25"},
        KindCase{"BelowOne", of(kBelowOne), "in [0, 1)", "in [0, 1)", 0.95, "0.95", "0.95"},
        KindCase{"Fraction", of(kFraction), "in (0, 1]", "in (0, 1]", 1.0, "1", "1"},
        KindCase{"Betas", of(kBetas), "none or two numbers in [0, 1)", "None or two numbers in [0, 1)", Pair{0.9, 0.0},
                 "{0.9, 0}", "(0.9, 0)"},
        KindCase{"Enumerator", of(one_of({"Side", kSides})), "one of Side::automatic, Side::left",
                 "one of 'auto', 'left'", std::string_view("auto"), "Side::automatic", "'auto'"},
        KindCase{"Text", of(one_of({"", kNames})), "one of \"lion\", \"adamw\"", "one of 'lion', 'adamw'",
                 std::string_view("adamw"), "\"adamw\"", "'adamw'"},
        KindCase{"Dtype", of(kDtypeOrNone), "none or a floating-point dtype",
                 "None, a floating-point torch.dtype or its name", std::string_view("bfloat16"), "BFloat16",
                 "'bfloat16'"}),
    [](const auto& info) { return info.param.name; });

struct RefusedValue {
  Allowed allowed;
  std::vector<Value> values;
};

TEST(Option, RefusesOtherKindsAndWhatIsOutsideItsBounds) {
  const Value text = std::string_view("lion"), number = 0.5, integer = int64_t{2};
  for (const auto& [allowed, values] : std::vector<RefusedValue>{
           {kFlag, {integer, number, text}},
           {kAnyInteger, {true, 2.0, text}},
           {kCounting, {int64_t{0}, 1.0}},
           {kBelowHundred, {int64_t{0}, int64_t{100}, 5.0}},
           {kDimsOrNone, {int64_t{-1}, std::numeric_limits<int64_t>::min()}},
           {kNotNegative, {-1e-300, kNaN, kInfinity, true, text, Pair{0.5, 0.5}}},
           {kBelowOne, {1.0, -0.1, kNaN}},
           {kFraction, {0.0, 1.5, kNaN}},
           {kAtLeastOne, {0.99, kInfinity}},
           {kBetas, {Pair{0.9, 1.0}, Pair{-0.1, 0.5}, Pair{kNaN, 0.5}, number}},
           {one_of({"Side", kSides}), {std::string_view("automatic"), std::string_view(""), integer}},
           {kDtypeOrNone, {std::string_view("float8_e4m3fn"), std::string_view("Float"), number}}}) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_FALSE(accepted(of(allowed), values[i]).has_value()) << words_of(of(allowed)) << ", value " << i;
    }
  }
}

TEST(Option, TakesIntegersForNumbersAndGivesBackTheTextOfItsDeclaration) {
  EXPECT_EQ(accepted(of(kNotNegative), int64_t{3}), Value(3.0));
  EXPECT_EQ(accepted(of(kAnyInteger), std::numeric_limits<int64_t>::min()), Value(std::numeric_limits<int64_t>::min()));
  const std::string given = "left";  // may be gone before the options are
  const Value kept = *accepted(of(one_of({"Side", kSides})), std::string_view(given));
  EXPECT_EQ(std::get<std::string_view>(kept).data(), kSides[1].name.data());
}

TEST(Option, ShowsATextThatItDoesNotHaveAsItWasGiven) {
  const Option option = of(one_of({"Side", kSides}));
  EXPECT_EQ(shown(option, std::string_view("up")), "\"up\"");
  const Speaking speaking({"torchdion.Dion", Language::python});
  EXPECT_EQ(shown(option, std::string_view("up")), "'up'");
  EXPECT_EQ(shown(option, {}), "None");
}

TEST(Dtypes, HaveTheNamesOfPythonAndNoOthersHaveOne) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const std::string_view name = name_of(dtype);
    EXPECT_EQ(name, c10::getDtypeNames(dtype).first);
    EXPECT_EQ(dtype_of(name), dtype);
  }
  for (const at::ScalarType dtype : {at::kLong, at::kFloat8_e4m3fn, at::kComplexFloat}) EXPECT_EQ(name_of(dtype), "");
}

TEST(Options, HoldTheLastValueOfAName) {
  Options options;
  options.set("lr", 0.5);
  options.set("momentum_dtype", Value());
  options.set("lr", 0.25);
  EXPECT_EQ(options.number("lr"), 0.25);
  EXPECT_TRUE(options.has("momentum_dtype"));
  EXPECT_FALSE(options.has("mu"));
  EXPECT_EQ(options.dtype_or("momentum_dtype", at::kHalf), at::kHalf);
  options.set("momentum_dtype", std::string_view("float64"));
  EXPECT_EQ(options.dtype_or("momentum_dtype", at::kHalf), at::kDouble);
  EXPECT_THROW(options.number("mu"), c10::Error) << "a name that nothing declares";
}

TEST(Options, OfAnAlgorithmAreItsOwnFromTheGroupAndElseAsDeclared) {
  const Options lion = options_of(algorithm("lion"), {{"lr", 0.5}, {"betas", Value()}, {"mu", 0.3}});
  EXPECT_EQ(lion.number("lr"), 0.5);
  EXPECT_EQ(lion.pair("betas"), Pair(0.95, 0.98)) << "its own, where the group has none";
  EXPECT_FALSE(lion.has("mu"));
  EXPECT_EQ(options_of(algorithm("adamw"), {}).pair("betas"), Pair(0.9, 0.95));
  EXPECT_EQ(options_of(algorithm("dion"), {{"mu", 0.3}}).number("mu"), 0.3);
}

// What a group is given first must be a value that it would take.
TEST(Options, AreDeclaredWithValuesThatTheyTake) {
  for (const Option& option : options()) {
    EXPECT_TRUE(is_none(option.initial) || accepted(option, option.initial) == option.initial) << option.name;
    EXPECT_FALSE(option.doc.empty()) << option.name;
    if (is_none(option.uncaptured.value)) continue;
    EXPECT_EQ(accepted(option, option.uncaptured.value), option.uncaptured.value) << option.name;
  }
  EXPECT_TRUE(is_none(option("betas")->initial)) << "each algorithm's own";
  EXPECT_EQ(option("nothing"), nullptr);
}

TEST(Options, SayWhichAlgorithmUpdatesAParameterOfSoManyDimensions) {
  Options group = options_of(algorithm("dion"), {{"scalar_algorithm", std::string_view("adamw")}});
  EXPECT_EQ(algorithm_of(2, group).name, "dion");
  EXPECT_EQ(algorithm_of(1, group).name, "adamw");
  group.set("batch_dims", int64_t{1});
  EXPECT_EQ(algorithm_of(2, group).name, "adamw") << "a stack of vectors";
  EXPECT_EQ(algorithm_of(3, group).name, "dion");
  group.set("algorithm", std::string_view("lion"));
  EXPECT_EQ(algorithm_of(3, group).name, "lion");
}

}  // namespace

}  // namespace torchdion::algorithms
