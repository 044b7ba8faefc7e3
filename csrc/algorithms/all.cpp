#include "algorithms/all.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "algorithms/shared.h"
#include "algorithms/table.h"

namespace torchdion::algorithms {

namespace {

#define TORCHDION_ADDRESS(name) &name,
constexpr const Algorithm* kAll[] = {TORCHDION_ALGORITHMS(TORCHDION_ADDRESS)};
#undef TORCHDION_ADDRESS

std::vector<Choice> names(bool of_elements_alone) {
  std::vector<Choice> names;
  for (const Algorithm* algorithm : kAll) {
    if (!of_elements_alone || !algorithm->takes_matrices()) names.emplace_back(algorithm->name);
  }
  return names;
}

// Those that say which algorithm is meant: their texts are the names in the table.
const std::vector<Option>& options_of_choice() {
  static const std::vector<Choice> every = names(false), scalar = names(true);
  static const std::vector<Option> options{
      {"algorithm", kAll[0]->name, one_of({"", every}), "the update rule of the group's parameters"},
      {"scalar_algorithm", kLion.name, one_of({"", scalar}),
       "the rule of what is no matrix in a group whose algorithm takes matrices (arXiv 2504.05295, Section 3.2)"},
  };
  return options;
}

// Calls visit(options) for those that all algorithms have, those that say how matrices lie, and the algorithm's own.
template <class Visit>
void for_each_list(const Algorithm& algorithm, const Visit& visit) {
  visit(shared_options());
  visit(options_of_choice());
  if (algorithm.takes_matrices()) visit(matrix_options());
  visit(algorithm.options);
}

template <class List>
void append_new(std::vector<Option>& options, const List& more) {
  for (const Option& option : more) {
    const auto is_same = [&](const Option& known) { return known.name == option.name; };
    const auto found = std::find_if(options.begin(), options.end(), is_same);
    if (found == options.end()) {
      options.push_back(option);
    } else if (found->initial != option.initial && found->allowed.or_none) {
      found->initial = {};  // each algorithm's own
    }
  }
}

}  // namespace

std::span<const Algorithm* const> all() { return kAll; }

const Algorithm& algorithm(std::string_view name) {
  for (const Algorithm* known : kAll) {
    if (known->name == name) return *known;
  }
  TORCH_INTERNAL_ASSERT(false, "no algorithm is called ", name);
}

const std::vector<Option>& options() {
  static const std::vector<Option> options = [] {
    std::vector<Option> every;
    for (const Algorithm* algorithm : kAll) {
      for_each_list(*algorithm, [&](const auto& list) { append_new(every, list); });
    }
    return every;
  }();
  return options;
}

const Option* option(std::string_view name) {
  for (const Option& known : options()) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

const std::vector<std::string_view>& states() {
  static const std::vector<std::string_view> states = [] {
    std::vector<std::string_view> every;
    for (const Algorithm* algorithm : kAll) {
      for (const State& state : algorithm->states) {
        if (std::find(every.begin(), every.end(), state.name) == every.end()) every.push_back(state.name);
      }
    }
    return every;
  }();
  return states;
}

bool has_option(const Algorithm& algorithm, std::string_view name) {
  bool has = false;
  for_each_list(algorithm, [&](const auto& list) {
    has = has || std::any_of(list.begin(), list.end(), [&](const Option& option) { return option.name == name; });
  });
  return has;
}

bool group_has_option(std::string_view own, std::string_view scalar, std::string_view name) {
  const Algorithm& named = algorithm(own);
  return has_option(named, name) || (named.takes_matrices() && has_option(algorithm(scalar), name));
}

Options options_of(const Algorithm& algorithm, const Options& group) {
  Options options;
  for_each_list(algorithm, [&](const auto& list) {
    for (const Option& option : list) {
      const bool is_given =
          group.has(option.name) && (!is_none(group.at(option.name)) || option.allowed.none_is_a_value);
      options.set(option.name, is_given ? group.at(option.name) : option.initial);
    }
  });
  return options;
}

Pair betas_of(std::string_view own, std::string_view scalar) {
  const Algorithm& named = algorithm(own);
  return options_of(has_option(named, "betas") ? named : algorithm(scalar), {}).pair("betas");
}

const Algorithm& algorithm_of(int64_t dims, std::string_view own, std::string_view scalar, int64_t batch_dims) {
  const Algorithm& named = algorithm(own);
  return named.takes_matrices() && dims - batch_dims < 2 ? algorithm(scalar) : named;
}

const Algorithm& algorithm_of(int64_t dims, const Options& group) {
  return algorithm_of(dims, group.text("algorithm"), group.text("scalar_algorithm"),
                      group.integer_or_zero("batch_dims"));
}

std::vector<std::size_t> factors_of(const Algorithm& algorithm) {
  std::vector<std::size_t> factors;
  for (std::size_t k = 0; k < algorithm.states.size(); ++k) {
    if (algorithm.states[k].shape == StateShape::factor) factors.push_back(k);
  }
  return factors;
}

int64_t index_of(const Algorithm& algorithm, std::string_view state) {
  for (std::size_t k = 0; k < algorithm.states.size(); ++k) {
    if (algorithm.states[k].name == state) return static_cast<int64_t>(k);
  }
  return -1;
}

}  // namespace torchdion::algorithms
