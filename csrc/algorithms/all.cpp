#include "algorithms/all.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "algorithms/shared.h"
#include "algorithms/table.h"

namespace torchdion::algorithms {

namespace {

#define TORCHDION_ADDRESS(name) &name,
constexpr const Algorithm* kAll[] = {TORCHDION_ALGORITHMS(TORCHDION_ADDRESS)};
#undef TORCHDION_ADDRESS

constexpr Choice kNonfiniteNames[] = {{"propagate", "propagate", Nonfinite::propagate},
                                      {"zero", "zero", Nonfinite::zero},
                                      {"skip_step", "skip_step", Nonfinite::skip_step},
                                      {"raise", "raise", Nonfinite::raise}};

// Of every algorithm.
constexpr Option kShared[] = {
    lr_of(0.01, "learning rate η"),
    {"lr_multiplier", 1.0, kNotNegative, "a factor on lr, so that one schedule drives all groups (Table 1)"},
    {.name = "weight_decay",
     .initial = 0.01,
     .allowed = kNotNegative,
     .doc = "λ, decoupled: weights are scaled by 1 − ηλ",
     .may_be_tensor = true},
    {"cautious_wd", false, kFlag, "weights decay where they have the sign of the update alone (arXiv 2510.12402)"},
    {"maximize", false, kFlag, "ascend instead of descend"},
    {"batch_dims", {}, kDimsOrNone, "leading dimensions that count matrices, as in stacks of experts"},
    {.name = "capturable",
     .initial = false,
     .allowed = kFlag,
     .doc = "a CUDA graph may capture steps",
     .of_optimizer = true,
     .of_run = true},
    {.name = "nonfinite",
     .initial = std::string_view("propagate"),
     .allowed = one_of({"Nonfinite", kNonfiniteNames}),
     .doc = "what NaN and infinite entries of gradients do",
     .uncaptured = {std::string_view("raise")},
     .of_optimizer = true},
    precision_of("high"),
};

// Of every algorithm that takes matrices: how they lie in parameters.
constexpr Option kOfMatrices[] = {
    {"blocks", int64_t{1}, kCounting, "matrices fused along the rows: 3 for QKV"},
    {"fan_in_first", false, kFlag, "the first matrix dimension is the fan-in, as of ConvTranspose weights"},
    {"skip_zero_gradients", false, kFlag,
     "a matrix whose gradient is exactly zero on all ranks keeps weight and state, as experts without tokens should"},
};

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

using OptionList = std::span<const Option>;

// Those that all algorithms have, those that say how matrices lie, and the algorithm's own.
std::array<OptionList, 4> option_lists(const Algorithm& algorithm) {
  const OptionList of_matrices = algorithm.takes_matrices() ? OptionList(kOfMatrices) : OptionList();
  return {kShared, options_of_choice(), of_matrices, algorithm.options};
}

void append_new(std::vector<Option>& options, OptionList more) {
  for (const Option& option : more) {
    const auto found = std::ranges::find(options, option.name, &Option::name);
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
  const auto* known = std::ranges::find(kAll, name, &Algorithm::name);
  TORCH_INTERNAL_ASSERT(known != std::end(kAll), "no algorithm is called ", name);
  return **known;
}

const std::vector<Option>& options() {
  static const std::vector<Option> options = [] {
    std::vector<Option> every;
    for (const Algorithm* algorithm : kAll) {
      for (const OptionList list : option_lists(*algorithm)) append_new(every, list);
    }
    return every;
  }();
  return options;
}

const Option* option(std::string_view name) {
  const auto known = std::ranges::find(options(), name, &Option::name);
  return known == options().end() ? nullptr : &*known;
}

const std::vector<std::string_view>& states() {
  static const std::vector<std::string_view> states = [] {
    std::vector<std::string_view> every;
    for (const Algorithm* algorithm : kAll) {
      for (const State& state : algorithm->states) {
        if (std::ranges::find(every, state.name) == every.end()) every.push_back(state.name);
      }
    }
    return every;
  }();
  return states;
}

bool has_option(const Algorithm& algorithm, std::string_view name) {
  return std::ranges::any_of(option_lists(algorithm), [&](OptionList list) {
    return std::ranges::find(list, name, &Option::name) != list.end();
  });
}

bool group_has_option(std::string_view own, std::string_view scalar, std::string_view name) {
  const Algorithm& named = algorithm(own);
  return has_option(named, name) || (named.takes_matrices() && has_option(algorithm(scalar), name));
}

Options options_of(const Algorithm& algorithm, const Options& group) {
  Options options;
  for (const OptionList list : option_lists(algorithm)) {
    for (const Option& option : list) {
      const bool is_given =
          group.has(option.name) && (!is_none(group.at(option.name)) || option.allowed.none_is_a_value);
      options.set(option.name, is_given ? group.at(option.name) : option.initial);
    }
  }
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
  const auto found = std::ranges::find(algorithm.states, state, &State::name);
  return found == algorithm.states.end() ? -1 : found - algorithm.states.begin();
}

}  // namespace torchdion::algorithms
