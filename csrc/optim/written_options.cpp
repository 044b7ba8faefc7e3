#include "optim/written_options.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "algorithms/all.h"
#include "engine/shapes.h"
#include "engine/state.h"
#include "optim/groups.h"
#include "optim/options.h"
#include "optim/parameters.h"
#include "words.h"

namespace torchdion::optim {

namespace {

using algorithms::Option;

// A state that a parameter has.
struct Existing {
  const at::Tensor& param;
  const ParamState& state;
  const algorithms::State& declared;
};

std::vector<Existing> existing_states(const Optimizer& optimizer, const std::vector<at::Tensor>& params,
                                      const Layouts& layouts, const algorithms::Options& values) {
  std::vector<Existing> existing;
  for (const at::Tensor& param : params) {
    const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
    if (found == optimizer.state().end() || engine::whole_numel(param, layout_of(layouts, param)) == 0) continue;
    const ParamState& state = ours(*found->second);
    for (const algorithms::State& declared : algorithms::algorithm_of(param.dim(), values).states) {
      if (state.tensor(std::string(declared.name)).defined()) existing.push_back({param, state, declared});
    }
  }
  return existing;
}

bool is_of_factor(const Existing& one) { return one.declared.shape == algorithms::StateShape::factor; }

bool has_other_rank(const Existing& one, const Layouts& layouts, const algorithms::Options& values) {
  if (!is_of_factor(one)) return false;
  const at::IntArrayRef sizes = engine::whole_sizes(one.param, layout_of(layouts, one.param));
  return one.state.whole_sizes(std::string(one.declared.name)).back() !=
         engine::whole_state_sizes(one.declared, sizes, values).back();
}

bool has_other_dtype(const Existing& one, std::string_view option, const algorithms::Options& values) {
  const at::Tensor& state = one.state.tensor(std::string(one.declared.name));
  return one.declared.dtype_option == option && state.scalar_type() != values.dtype_or(option, one.param.scalar_type());
}

bool group_has(const algorithms::Options& values, std::string_view option) {
  const algorithms::Algorithm& own = algorithms::algorithm(values.text("algorithm"));
  const algorithms::Algorithm& scalar = algorithms::algorithm(values.text("scalar_algorithm"));
  return algorithms::has_option(own, option) || (own.takes_matrices() && algorithms::has_option(scalar, option));
}

// Sides of a matrix to which states of these shapes belong are chosen by the option.
bool chooses_side_of(const Option& option, const Existing& one) {
  const algorithms::StateShape shape = one.declared.shape;
  return (is_of_factor(one) && (option.name == "orientation" || option.name == "fan_in_first")) ||
         (shape == algorithms::StateShape::rows && option.name == "fan_in_first");
}

// The first state that keeps the side for which it was made; null: the option chooses the side of none.
const Existing* kept_by(const Option& option, const std::vector<Existing>& existing) {
  const auto is_sided = [&](const Existing& one) { return chooses_side_of(option, one); };
  const auto found = std::find_if(existing.begin(), existing.end(), is_sided);
  return found == existing.end() ? nullptr : &*found;
}

// True if states are made by it.
bool is_of_states(const Option& option) {
  constexpr std::array kNames = {"orientation", "fan_in_first", "rank_multiple_of", "seed"};
  const auto& all = algorithms::all();
  return std::find(kNames.begin(), kNames.end(), option.name) != kNames.end() ||
         option.allowed.kind == algorithms::Allowed::Kind::dtype ||
         std::any_of(all.begin(), all.end(), [&](const algorithms::Algorithm* one) {
           return std::any_of(one->states.begin(), one->states.end(),
                              [&](const algorithms::State& state) { return state.rank_option == option.name; });
         });
}

// The options that say which algorithm updates a parameter.
constexpr std::array kRule = {"algorithm", "scalar_algorithm", "batch_dims"};

// A sentence about an option that was written.
struct Warning {
  Reason reason;
  std::string sentence;
};

// The warning of an option that was written; none: it is obeyed.
std::optional<Warning> warning_of(const Option& option, const std::vector<Existing>& existing, const Layouts& layouts,
                                  const algorithms::Options& values, const algorithms::Value& before,
                                  const std::string& where) {
  const std::string is = algorithms::assigned(option, values.at(option.name)) + where;
  const auto any = [&](const auto& holds) { return std::any_of(existing.begin(), existing.end(), holds); };
  if (!group_has(values, option.name)) {
    return Warning{Reason::ignored,
                   c10::str("the option '", option.name, "'", where, " is kept and ignored: the algorithm '",
                            values.text("algorithm"), "' does not have it")};
  }
  if (const Existing* kept = kept_by(option, existing)) {
    return Warning{Reason::side, c10::str(is, " is not taken: it stays ", algorithms::shown(option, before), ", which ",
                                          kept->declared.name, " was made for")};
  }
  if (option.name == "seed" && any(is_of_factor)) {
    return Warning{Reason::start,
                   is + " is that of Q that are still to be made: those that there are keep their start"};
  }
  if (option.allowed.kind == algorithms::Allowed::Kind::dtype &&
      any([&](const Existing& one) { return has_other_dtype(one, option.name, values); })) {
    return Warning{Reason::dtype, is + " is the dtype of states that are still to be made: those that there are keep "
                                       "theirs until a state dict is loaded"};
  }
  const bool is_of_ranks = option.name == "rank_multiple_of" ||
                           any([&](const Existing& one) { return one.declared.rank_option == option.name; });
  if (is_of_ranks && any([&](const Existing& one) { return has_other_rank(one, layouts, values); })) {
    return Warning{Reason::rank, is + " is that of Q that are still to be made: those that there are keep their rank "
                                      "until resize_rank() is called"};
  }
  return std::nullopt;
}

bool have_equal_names(const algorithms::Algorithm& one, const algorithms::Algorithm& other) {
  return std::equal(one.states.begin(), one.states.end(), other.states.begin(), other.states.end(),
                    [](const algorithms::State& a, const algorithms::State& b) { return a.name == b.name; });
}

// The warning of states that another algorithm goes on with, whose states have the same names; steps refuse others.
std::optional<std::pair<std::string, Warning>> warning_of_rule(const Optimizer& optimizer,
                                                               const std::vector<at::Tensor>& params,
                                                               const algorithms::Options& values,
                                                               const algorithms::Options& before,
                                                               const std::string& where) {
  const auto is_written = [&](const char* option) { return values.at(option) != before.at(option); };
  const auto option = std::find_if(kRule.begin(), kRule.end(), is_written);
  if (option == kRule.end()) return std::nullopt;
  for (const at::Tensor& param : params) {
    const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
    if (found == optimizer.state().end() || !ours(*found->second).step().defined()) continue;
    const algorithms::Algorithm& old_one = algorithms::algorithm_of(param.dim(), before);
    const algorithms::Algorithm& new_one = algorithms::algorithm_of(param.dim(), values);
    if (&old_one == &new_one || !have_equal_names(old_one, new_one)) continue;
    const std::string is = algorithms::assigned(*algorithms::option(*option), values.at(*option)) + where;
    return std::pair{std::string(*option),
                     Warning{Reason::other_algorithm,
                             c10::str(is, " makes '", new_one.name, "' go on with the ", old_one.states[0].name,
                                      " of '", old_one.name, "', which may mean something else")}};
  }
  return std::nullopt;
}

// The last look at the group that had one of these parameters; null: none had.
const SaidOptions* said_of(const std::vector<const void*>& params, std::size_t index,
                           const std::vector<SaidOptions>& said) {
  if (index < said.size() && said[index].params == params) return &said[index];
  const auto had = [&](const SaidOptions& one) {
    return std::find_first_of(params.begin(), params.end(), one.params.begin(), one.params.end()) != params.end();
  };
  const auto found = std::find_if(said.begin(), said.end(), had);
  return found == said.end() ? nullptr : &*found;
}

void warn_once(SaidOptions& said, const std::string& option, const Warning& warning) {
  if (said.told.emplace(option, warning.reason).second) TORCH_WARN(prefix(), warning.sentence);
}

void write_back(const Option& option, const algorithms::Value& value, Options& options) {
  if (option.name == "fan_in_first") {
    options.fan_in_first(std::get<bool>(value));
  } else {
    options.orientation(algorithms::enumerator<Orientation>(option.allowed.choices, std::get<std::string_view>(value)));
  }
}

}  // namespace

SaidOptions said_by(const torch::optim::OptimizerParamGroup& group, const engine::GroupOptions& options) {
  SaidOptions said{options.values, {}};
  said.params.reserve(group.params().size());
  for (const at::Tensor& param : group.params()) said.params.push_back(param.unsafeGetTensorImpl());
  return said;
}

void look_at(Optimizer& optimizer, const Layouts& layouts, std::vector<engine::GroupOptions>& options,
             std::vector<SaidOptions>& said, bool resizes) {
  std::vector<SaidOptions> now;
  for (std::size_t i = 0; i < options.size(); ++i) {
    algorithms::Options& values = options[i].values;
    auto& group = optimizer.param_groups()[i];
    now.push_back(said_by(group, options[i]));
    const SaidOptions* last = said_of(now[i].params, i, said);
    if (!last) continue;
    now[i].told = last->told;
    const std::string where = group_name(i);
    if (const auto rule = warning_of_rule(optimizer, group.params(), values, last->values, where)) {
      warn_once(now[i], rule->first, rule->second);
    }
    std::optional<std::vector<Existing>> existing;
    for (const Option& option : algorithms::options()) {
      const algorithms::Value before = last->values.at(option.name);
      if (values.at(option.name) == before || (group_has(values, option.name) && !is_of_states(option))) continue;
      if (!existing) existing = existing_states(optimizer, group.params(), layouts, values);
      const std::optional<Warning> warning = warning_of(option, *existing, layouts, values, before, where);
      if (kept_by(option, *existing)) {
        values.set(option.name, before);
        write_back(option, before, static_cast<Options&>(group.options()));
      }
      if (warning && !(resizes && warning->reason == Reason::rank))
        warn_once(now[i], std::string(option.name), *warning);
    }
    now[i].values = values;
  }
  said = std::move(now);
}

}  // namespace torchdion::optim
