// What ranks take parameters, groups and the optimizer for.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "algorithms/options_by_name.h"
#include "comm/line.h"
#include "engine/agreement.h"

namespace torchdion::engine {

namespace {

GroupOptions group_with(algorithms::NamedValues values) {
  GroupOptions group;
  for (const algorithms::Option& option : algorithms::options()) group.values.set(option.name, option.initial);
  for (const auto& [name, value] : values) group.values.set(name, value);
  return group;
}

Axis axis_called(const std::string& name) {
  Axis axis;
  axis.size = 2;
  axis.line = std::make_shared<comm::Line>();
  axis.line->options = {.name = name, .chunks = {2}, .pieces = {0, 1}};
  return axis;
}

ParameterView parameter(const std::string& name, std::size_t group, std::vector<int64_t> sizes) {
  ParameterView view;
  view.name = name;
  view.group = group;
  view.param = view.tensor = at::zeros(sizes).set_requires_grad(true);
  view.lies = "rows on fs";
  return view;
}

std::string property(const Claim& claim, const std::string& name) {
  for (const auto& [known, value] : claim.properties) {
    if (known == name) return value;
  }
  return "no such property";
}

// Of one parameter in one group.
std::vector<Claim> claims_of_one(const ParameterView& parameter, const GroupOptions& group, Operation operation) {
  return claims_of({&parameter}, {{group, {}}}, {}, operation, {});
}

Claim claim_of(const ParameterView& parameter, const GroupOptions& group, Operation operation) {
  return claims_of_one(parameter, group, operation).back();
}

Claim claim_of_group(const GroupOptions& group) {
  return claims_of_one(parameter("parameter 0", 0, {12, 20}), group, Operation::step)[1];
}

TEST(Claims, AreOfTheOptimizerItsGroupsAndItsParametersAlongAllTheirAxes) {
  const std::vector<ParameterGroup> groups = {
      {group_with({}), {}}, {group_with({}), {}}, {group_with({{"mu", 0.5}}), {}}};
  ParameterView one = parameter("parameter 0", 0, {12, 20}), two = parameter("parameter 1", 2, {7}),
                three = parameter("parameter 2", 2, {5});
  one.axes = {axis_called("fs")};
  two.axes = {axis_called("dp")};
  three.axes = {axis_called("tp")};
  one.param.mutable_grad() = at::zeros({12, 20}, at::kBFloat16);
  one.layout.rows = one.axes.front();
  const auto claims =
      claims_of({&one, &two, &three}, groups, {{"momenta", "equal"}}, Operation::step, axis_called("all"));
  std::vector<std::string> said;
  for (const Claim& claim : claims) {
    said.push_back(claim.name + (claim.is_parameter ? ", a parameter, over" : " over"));
    for (const Axis& axis : claim.axes) said.back() += " " + axis.name();
  }
  EXPECT_EQ(said, (std::vector<std::string>{
                      "the optimizer over fs all dp all tp all", "parameter group 0 over fs all",
                      "parameter group 2 over dp all tp all", "parameter 0, a parameter, over fs all",
                      "parameter 1, a parameter, over dp all", "parameter 2, a parameter, over tp all"}));
  EXPECT_EQ(property(claims[0], "momenta"), "equal");
  EXPECT_EQ(property(claims[2], "mu"), "0.5");
  EXPECT_EQ(claims[3].gradient, at::kBFloat16);
  EXPECT_EQ(claims[3].shared.front().line, one.axes.front().line);
}

TEST(Claims, OfAGroupHaveEveryOptionToTheLastDigit) {
  const Claim claim = claim_of_group(group_with({{"lr", 0.1}}));
  ASSERT_EQ(claim.properties.size(), algorithms::options().size());
  for (const algorithms::Option& option : algorithms::options()) {
    EXPECT_NE(property(claim, std::string(option.name)), "no such property") << option.name;
  }
  EXPECT_EQ(property(claim, "orientation"), "Orientation::right");
  EXPECT_NE(property(claim_of_group(group_with({{"lr", std::nextafter(0.1, 1)}})), "lr"), property(claim, "lr"));
}

TEST(Claims, OfARateThatIsATensorHaveItsNumber) {
  GroupOptions group = group_with({{"lr", 7.0}, {"weight_decay", 0.5}});
  group.lr = at::full({}, 0.1, at::kDouble);
  const Claim claim = claim_of_group(group);
  EXPECT_EQ(property(claim, "lr"), "0.1");
  EXPECT_EQ(property(claim, "weight_decay"), "0.5");
}

TEST(Claims, OfAParameterSayWhatIsThere) {
  const GroupOptions group = group_with({});
  ParameterView one = parameter("parameter 0", 0, {12, 20});
  one.state.step = at::full({}, 3.0);
  one.state.set("momentum", at::zeros({12, 20}, at::kBFloat16), {12, 20});
  one.state.set("Q", at::zeros({12, 4}), {12, 4});
  const Claim claim = claim_of(one, group, Operation::check_replicas);
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"group", "0"},           {"shape", "[12, 20]"},
      {"dtype", "Float"},       {"kind of device", "cpu"},
      {"layout", "rows on fs"}, {"requires_grad", "true"},
      {"steps taken", "3"},     {"state", "momentum of BFloat16, Q of Float and shape [12, 4]"}};
  EXPECT_EQ(claim.properties, expected);
  EXPECT_FALSE(claim.gradient.has_value()) << "of a step alone";
}

// A rank that has state and one that is about to make it agree where the step makes the same, and only there.
TEST(Claims, OfAStepHaveTheStateThatItMakesOfOtherOperationsTheOneThatThereIs) {
  const GroupOptions group = group_with({{"rank_fraction", 0.25}, {"momentum_dtype", std::string_view("bfloat16")}});
  const ParameterView fresh = parameter("parameter 0", 0, {12, 20});
  ParameterView stepped = fresh;
  stepped.state.step = at::zeros({});  // as a skipped step leaves it
  stepped.state.set("momentum", at::zeros({12, 20}, at::kBFloat16), {12, 20});
  stepped.state.set("Q", at::zeros({12, 3}), {12, 3});
  const auto state = [&](const ParameterView& one, Operation operation) {
    return property(claim_of(one, group, operation), "state");
  };
  EXPECT_EQ(state(fresh, Operation::step), "momentum of BFloat16, Q of Float and shape [12, 3]");
  EXPECT_EQ(state(stepped, Operation::step), state(fresh, Operation::step));
  EXPECT_EQ(claim_of(stepped, group, Operation::step).properties, claim_of(fresh, group, Operation::step).properties);
  EXPECT_EQ(state(fresh, Operation::resize_rank), "none");
  EXPECT_EQ(property(claim_of(fresh, group, Operation::resize_rank), "steps taken"), "none");
  EXPECT_NE(state(stepped, Operation::resize_rank), "none");
  stepped.state.set("Q", at::zeros({12, 5}), {12, 5});
  EXPECT_NE(state(stepped, Operation::step), state(fresh, Operation::step));
  const ParameterView vector = parameter("parameter 1", 0, {7});
  EXPECT_EQ(state(vector, Operation::step), "momentum of BFloat16") << "of Lion";
}

}  // namespace

}  // namespace torchdion::engine
