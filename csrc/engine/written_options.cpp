#include "engine/written_options.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <optional>

#include "engine/state.h"

namespace torchdion::engine {

namespace {

using algorithms::Algorithm;
using algorithms::Option;
using algorithms::Options;
using algorithms::StateShape;

// The options that say which algorithm updates a parameter.
constexpr std::array kRule = {"algorithm", "scalar_algorithm", "batch_dims"};

bool differs(const Options& before, const Options& now, std::string_view option) {
  return before.has(option) && before.at(option) != now.at(option);
}

// Of an option that an algorithm of the group has; none: it is obeyed.
std::optional<Remark> remark_on(const Option& option, const std::vector<ParameterView>& parameters,
                                const Options& before, const Options& now, const std::string& where) {
  const auto remark = [&](Reason reason, const auto&... what) {
    return Remark{option.name, reason, c10::str(algorithms::assigned(option, now.at(option.name)), where, what...)};
  };
  for (const ParameterView& view : parameters) {
    if (view.numel() == 0) continue;
    for (const algorithms::State& declared : algorithms::algorithm_of(view.param.dim(), now).states) {
      const StateTensor* state = view.state.find(declared.name);
      if (!state) continue;
      const bool is_factor = declared.shape == StateShape::factor, is_of_rows = declared.shape == StateShape::rows;
      if ((option.name == "orientation" && is_factor) || (option.name == "fan_in_first" && (is_factor || is_of_rows))) {
        return remark(Reason::kept, " is not taken: it stays ", algorithms::shown(option, before.at(option.name)),
                      ", which ", declared.name, " was made for");
      }
      if (declared.dtype_option == option.name &&
          state->tensor.scalar_type() != now.dtype_or(option.name, view.param.scalar_type())) {
        return remark(Reason::fixed,
                      " is the dtype of states that are still to be made: those that there are keep theirs "
                      "until a state dict is loaded");
      }
      const char* keep = option.name == "seed" ? "start"
                         : is_of_ranks(option) ? "rank until resize_rank() is called"
                                               : "";
      if (!is_factor || !*keep || state->sizes.empty()) continue;
      if (is_of_ranks(option) && state->sizes.back() == whole_state_sizes(declared, view.sizes(), now).back()) continue;
      return remark(Reason::fixed, " is that of Q that are still to be made: those that there are keep their ", keep);
    }
  }
  return std::nullopt;
}

// About states that another algorithm goes on with, whose states have the same names; the step refuses others.
std::optional<Remark> remark_on_rule(const Option& written, const std::vector<ParameterView>& parameters,
                                     const Options& before, const Options& now, const std::string& where) {
  const auto has_equal_name = [](const algorithms::State& one, const algorithms::State& other) {
    return one.name == other.name;
  };
  for (const ParameterView& view : parameters) {
    const Algorithm& old_one = algorithms::algorithm_of(view.param.dim(), before);
    const Algorithm& new_one = algorithms::algorithm_of(view.param.dim(), now);
    if (!view.state.is_begun() || &old_one == &new_one ||
        !std::equal(old_one.states.begin(), old_one.states.end(), new_one.states.begin(), new_one.states.end(),
                    has_equal_name)) {
      continue;
    }
    return Remark{written.name, Reason::fixed,
                  c10::str(algorithms::assigned(written, now.at(written.name)), where, " makes '", new_one.name,
                           "' go on with the ", old_one.states[0].name, " of '", old_one.name,
                           "', which may mean something else")};
  }
  return std::nullopt;
}

// About the momentum that CyclicLR and OneCycleLR cycle: β₁ wherever an optimizer has betas.
std::optional<Remark> remark_on_cycled_betas(const std::vector<ParameterView>& parameters, const Options& before,
                                             const Options& now, const std::string& where) {
  const Algorithm& own = algorithms::algorithm(now.text("algorithm"));
  const char* decay = algorithms::has_option(own, "mu") ? "mu" : "ef_decay";
  const auto takes_matrix = [&](const ParameterView& view) {
    return algorithms::algorithm_of(view.param.dim(), now).takes_matrices();
  };
  if (!algorithms::has_option(own, decay) || differs(before, now, decay) ||
      std::none_of(parameters.begin(), parameters.end(), takes_matrix)) {
    return std::nullopt;
  }
  const auto *old_ones = std::get_if<algorithms::Pair>(&before.at("betas")),
             *new_ones = std::get_if<algorithms::Pair>(&now.at("betas"));
  if (!old_ones || !new_ones || old_ones->first == new_ones->first) return std::nullopt;
  return Remark{"betas", Reason::fixed,
                c10::str("betas", where, " have another β₁, as under a scheduler with cycle_momentum: it is that of '",
                         now.text("scalar_algorithm"), "', while the momentum of '", own.name, "' is ", decay,
                         ", which stays ", algorithms::shown(*algorithms::option(decay), now.at(decay)))};
}

// "an option of normuon, dion3"
std::string an_option_of(std::string_view name) {
  std::string names;
  for (const Algorithm* known : algorithms::all()) {
    if (algorithms::has_option(*known, name)) names += c10::str(names.empty() ? "" : ", ", known->name);
  }
  return "an option of " + names;
}

}  // namespace

bool is_of_ranks(const Option& option) {
  const auto& all = algorithms::all();
  return option.name == "rank_multiple_of" || std::any_of(all.begin(), all.end(), [&](const Algorithm* one) {
           return std::any_of(one->states.begin(), one->states.end(),
                              [&](const algorithms::State& state) { return state.rank_option == option.name; });
         });
}

std::vector<Remark> remarks_on(const Options& before, const Options& now, const std::vector<ParameterView>& parameters,
                               const std::string& where) {
  std::vector<Remark> remarks;
  const auto add = [&](std::optional<Remark> remark) {
    if (remark) remarks.push_back(std::move(*remark));
  };
  const auto rule =
      std::find_if(kRule.begin(), kRule.end(), [&](const char* name) { return differs(before, now, name); });
  if (rule != kRule.end()) {
    if (std::all_of(kRule.begin(), kRule.end(), [&](const char* name) { return before.has(name); })) {
      add(remark_on_rule(*algorithms::option(*rule), parameters, before, now, where));
    }
  } else if (differs(before, now, "betas")) {
    add(remark_on_cycled_betas(parameters, before, now, where));
  }
  for (const Option& option : algorithms::options()) {
    if (!differs(before, now, option.name)) continue;
    if (algorithms::group_has_option(now.text("algorithm"), now.text("scalar_algorithm"), option.name)) {
      add(remark_on(option, parameters, before, now, where));
    } else {
      add(Remark{option.name, Reason::of_others,
                 c10::str("the option '", option.name, "'", where, " is kept and ignored: it is ",
                          an_option_of(option.name), ", which no parameter of the group has")});
    }
  }
  return remarks;
}

}  // namespace torchdion::engine
