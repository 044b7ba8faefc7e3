// What ranks take parameters, groups and the optimizer for.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

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
  return Claims().of({&parameter}, {{group, {}}}, {}, operation, {});
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
  const std::vector<Claim> claims =
      Claims().of({&one, &two, &three}, groups, {{"momenta", "equal"}}, Operation::step, axis_called("all"));
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

// Each change between two operations of what a claim is made of shows, as it would in new claims.
TEST(Claims, ThatAreKeptSayWhatNewOnesWould) {
  std::vector<ParameterGroup> groups = {{group_with({}), {}}, {group_with({}), {}}};
  ParameterView one = parameter("parameter 0", 0, {12, 20}), two = parameter("parameter 1", 1, {7});
  one.axes = two.axes = {axis_called("fs")};
  one.layout.rows = one.axes.front();
  Operation operation = Operation::step;
  Axis copies;
  std::vector<const ParameterView*> parameters = {&one, &two};
  struct Change {
    const char* what;
    std::function<void()> make;
    bool shows = true;
  };
  const std::vector<Change> changes = {
      {"all", [] {}},
      {"nothing", [] {}, false},
      {"a step", [&] { one.state.step = at::full({}, 3.0); }},
      {"a step of another dtype", [&] { one.state.step = at::full({}, 16777217, at::kLong); }},
      {"a gradient",
       [&] {
         one.param.mutable_grad() = at::zeros({12, 20});
       }},
      {"its dtype",
       [&] {
         one.param.mutable_grad() = at::zeros({12, 20}, at::kBFloat16);
       }},
      {"no gradient", [&] { one.param.mutable_grad() = at::Tensor(); }},
      {"the state that a step would make",
       [&] {
         one.state.set("momentum", at::zeros({12, 20}), {12, 20});
       },
       false},
      {"the state's dtype",
       [&] {
         one.state.set("momentum", at::zeros({12, 20}, at::kBFloat16), {12, 20});
       }},
      {"a factor",
       [&] {
         one.state.set("Q", at::zeros({12, 4}), {12, 4});
       }},
      {"the factor's rank",
       [&] {
         one.state.set("Q", at::zeros({12, 5}), {12, 5});
       }},
      {"no state", [&] { one.state = {}; }},
      {"a rate", [&] { groups[0].options.values.set("lr", 0.5); }},
      {"a rate that is a tensor", [&] { groups[1].options.lr = at::full({}, 0.25); }},
      {"the tensor's number", [&] { groups[1].options.lr.fill_(0.125); }},
      {"the rank of states to come", [&] { groups[0].options.values.set("rank_fraction", 0.25); }},
      {"an option", [&] { groups[0].options.values.set("mu", 0.5); }},
      {"the name", [&] { one.name = "weight"; }},
      {"the layout", [&] { one.lies = "columns on fs"; }},
      {"whose rows are cut", [&] { std::swap(one.layout.rows, one.layout.cols); }},
      {"what is averaged", [&] { one.layout.replicas = axis_called("dp"); }},
      {"the axes", [&] { one.axes.push_back(one.layout.replicas); }},
      {"another axis of the name", [&] { one.axes.back() = axis_called("dp"); }},
      {"the whole sizes",
       [&] {
         one.layout.sizes = {24, 20};
       }},
      {"requires_grad", [&] { two.param = two.param.detach(); }},
      {"the dtype", [&] { two.param = at::zeros({7}, at::kDouble); }},
      {"the group", [&] { two.group = 0; }},
      {"the order",
       [&] {
         parameters = {&two, &one};
       }},
      {"fewer", [&] { parameters = {&one}; }},
      {"the operation", [&] { operation = Operation::check_replicas; }},
      {"copies", [&] { copies = axis_called("all"); }},
  };
  const auto said = [](const std::vector<Claim>& claims) {
    std::string all;
    for (const Claim& claim : claims) {
      all += c10::str(claim.name, claim.is_parameter ? ", a parameter" : "", "\n");
      for (const auto& [name, value] : claim.properties) all += c10::str("  ", name, ": ", value, "\n");
      if (claim.gradient) all += c10::str("  gradient: ", *claim.gradient, "\n");
      for (const std::vector<Axis>* axes : {&claim.axes, &claim.shared}) {
        all += "  axes:";
        for (const Axis& axis : *axes) all += c10::str(" ", axis.line.get());
        all += "\n";
      }
    }
    return all;
  };
  Claims kept;
  std::string before;
  for (const Change& change : changes) {
    change.make();
    const std::string now = said(kept.of(parameters, groups, {}, operation, copies));
    EXPECT_EQ(now, said(Claims().of(parameters, groups, {}, operation, copies))) << change.what;
    EXPECT_EQ(now != before, change.shows) << change.what;
    before = now;
  }
}

}  // namespace

}  // namespace torchdion::engine
