#include "optim/options.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <type_traits>

#include "algorithms/all.h"
#include "linalg/memory.h"
#include "words.h"

namespace torchdion::optim {

namespace {

using algorithms::Option;
using OptionValue = algorithms::Value;
using Betas = Options::Betas;

// The one list of the fields: visit(name, field).
template <class Options, class Visit>
void for_each_option(Options& o, const Visit& visit) {
  visit("lr", o.lr());
  visit("lr_multiplier", o.lr_multiplier());
  visit("mu", o.mu());
  visit("betas", o.betas());
  visit("weight_decay", o.weight_decay());
  visit("cautious_wd", o.cautious_wd());
  visit("epsilon", o.epsilon());
  visit("nesterov", o.nesterov());
  visit("newton_schulz", o.newton_schulz());
  visit("ns_steps", o.ns_steps());
  visit("adjust_lr", o.adjust_lr());
  visit("muon_beta2", o.muon_beta2());
  visit("fraction", o.fraction());
  visit("ef_decay", o.ef_decay());
  visit("select", o.select());
  visit("error_feedback", o.error_feedback());
  visit("factorization", o.factorization());
  visit("rank_fraction", o.rank_fraction());
  visit("rank_multiple_of", o.rank_multiple_of());
  visit("chunk_size", o.chunk_size());
  visit("top_k", o.top_k());
  visit("replicate_mu", o.replicate_mu());
  visit("replicate_rank_fraction", o.replicate_rank_fraction());
  visit("delayed", o.delayed());
  visit("orientation", o.orientation());
  visit("orthonormalize", o.orthonormalize());
  visit("rcqr_oversample", o.rcqr_oversample());
  visit("right_factor", o.right_factor());
  visit("residual", o.residual());
  visit("algorithm", o.algorithm());
  visit("scalar_algorithm", o.scalar_algorithm());
  visit("batch_dims", o.batch_dims());
  visit("blocks", o.blocks());
  visit("fan_in_first", o.fan_in_first());
  visit("skip_zero_gradients", o.skip_zero_gradients());
  visit("maximize", o.maximize());
  visit("capturable", o.capturable());
  visit("nonfinite", o.nonfinite());
  visit("precision", o.precision());
  visit("seed", o.seed());
  visit("owners", o.owners());
  visit("momentum_dtype", o.momentum_dtype());
  visit("Q_dtype", o.Q_dtype());
  visit("variance_dtype", o.variance_dtype());
}

// The value of a field. An enumerator that there is not, or a dtype that no state has, is a value of another kind,
// which no option takes.
template <class T>
OptionValue to_value(const Option& option, const T& field) {
  if constexpr (std::is_same_v<T, c10::ScalarType>) {
    const std::string_view name = algorithms::name_of(field);
    return name.empty() ? OptionValue(static_cast<int64_t>(field)) : OptionValue(name);
  } else if constexpr (std::is_enum_v<T>) {
    const std::string_view text = algorithms::text_of(option.allowed.choices, field);
    return text.empty() ? OptionValue(static_cast<int64_t>(field)) : OptionValue(text);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return field.empty() ? option.initial : OptionValue(std::string_view(field));  // as declared, where nothing is said
  } else if constexpr (std::is_same_v<T, Betas>) {
    return algorithms::Pair{std::get<0>(field), std::get<1>(field)};
  } else {
    return field;
  }
}

template <class T>
OptionValue to_value(const Option& option, const std::optional<T>& field) {
  return field ? to_value(option, *field) : OptionValue();
}

// A field in a sentence.
template <class T>
std::string shown_field(const Option& option, const T& field) {
  if constexpr (std::is_same_v<T, std::optional<c10::ScalarType>>) {
    if (field) return shown(*field);  // also of a dtype that no state has
  }
  return algorithms::shown(option, to_value(option, field));
}

// The field of a value that the option takes.
template <class T>
void from_value(const Option& option, const OptionValue& value, T& field) {
  if constexpr (std::is_same_v<T, c10::ScalarType>) {
    field = algorithms::dtype_of(std::get<std::string_view>(value));
  } else if constexpr (std::is_enum_v<T>) {
    field = algorithms::enumerator<T>(option.allowed.choices, std::get<std::string_view>(value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    field = std::get<std::string_view>(value);
  } else if constexpr (std::is_same_v<T, Betas>) {
    const auto& pair = std::get<algorithms::Pair>(value);
    field = {pair.first, pair.second};
  } else {
    field = std::get<T>(value);
  }
}

template <class T>
void from_value(const Option& option, const OptionValue& value, std::optional<T>& field) {
  field.reset();
  if (!algorithms::is_none(value)) from_value(option, value, field.emplace());
}

const Option& declared(const char* name) { return *algorithms::option(name); }

// Gives options that an older version saved the names that they have now. In a group without our other options lr_scale
// is that of timm's and MAE's schedules, which apply it themselves.
void rename_saved_options(Entries& entries) {
  if (entries.contains("lr_multiplier") || !entries.contains("scalar_algorithm")) return;
  auto old = entries.extract("lr_scale");
  if (old.empty()) return;
  old.key() = "lr_multiplier";
  entries.insert(std::move(old));
}

double number_of(double number, const at::Tensor& tensor) { return tensor.defined() ? tensor.item<double>() : number; }

// The number of a tensor on another device is not looked at, which would make the host wait.
void check_rate(const char* name, const at::Tensor& rate, const std::string& where) {
  if (!rate.defined()) return;
  const bool is_number = linalg::has_memory(rate) && rate.numel() == 1 && at::isFloatingType(rate.scalar_type());
  TORCH_CHECK_VALUE(is_number, prefix(), name, " must be a tensor of one floating-point number, got ", rate.toString(),
                    " of shape ", rate.sizes(), where);
  if (!rate.is_cpu()) return;
  const double number = rate.item<double>();
  TORCH_CHECK_VALUE(number >= 0 && std::isfinite(number), prefix(), name, " must hold a finite number ≥ 0, got ",
                    shown(number), where);
}

}  // namespace

double weight_decay_of(const Options& options) {
  return number_of(options.weight_decay(), options.weight_decay_tensor());
}

void write_rates(const Options& options) {
  const at::NoGradGuard no_grad;
  if (options.lr_tensor().defined()) options.lr_tensor().fill_(options.lr());
  if (options.weight_decay_tensor().defined()) options.weight_decay_tensor().fill_(options.weight_decay());
}

engine::GroupOptions values_of(const Options& options, const std::string& where) {
  engine::GroupOptions group{{}, options.lr_tensor(), options.weight_decay_tensor()};
  for_each_option(options, [&](const char* name, const auto& field) {
    const Option& option = declared(name);
    const std::optional<OptionValue> taken = algorithms::accepted(option, to_value(option, field));
    TORCH_CHECK_VALUE(taken, algorithms::refusal(option, shown_field(option, field), where));
    group.values.set(option.name, *taken);
  });
  check_rate("lr_tensor", group.lr, where);
  check_rate("weight_decay_tensor", group.weight_decay, where);
  engine::check_combinations(group.values, where);
  if (algorithms::is_none(group.values.at("betas"))) {
    group.values.set("betas",
                     algorithms::betas_of(group.values.text("algorithm"), group.values.text("scalar_algorithm")));
  }
  return group;
}

Entries to_entries(const Options& options) {
  Entries entries;
  for_each_option(options, [&](const char* name, const auto& field) {
    entries.emplace(name, others::to_entry(to_value(declared(name), field)));
  });
  entries["lr"] = options.get_lr();
  entries["weight_decay"] = weight_decay_of(options);
  entries["betas"] = others::to_entry(values_of(options, "").values.at("betas"));
  return entries;
}

Entries from_entries(Entries entries, Options& options, const std::string& where) {
  rename_saved_options(entries);
  Entries unknown = entries;
  {
    const Speaking of_entries({words().front, Language::python});  // whose values are written as in Python
    for_each_option(options, [&](const char* name, auto& field) {
      const auto found = entries.find(name);
      if (found == entries.end()) return;
      const Option& option = declared(name);
      from_value(option, others::checked(option, found->second, where), field);
      unknown.erase(name);
    });
  }
  values_of(options, where);
  return unknown;
}

void keep_options_of(std::string_view algorithm, Options& options) {
  const algorithms::Algorithm& own = algorithms::algorithm(algorithm);
  options.algorithm(std::string(algorithm));
  for_each_option(options, [&](const char* name, auto& field) {
    const Option& option = declared(name);
    if (!algorithms::has_option(own, name)) from_value(option, option.initial, field);
  });
}

}  // namespace torchdion::optim

namespace torchdion {

double Options::get_lr() const { return optim::number_of(lr(), lr_tensor()); }

void Options::set_lr(const double lr) {
  this->lr(lr);
  const at::NoGradGuard no_grad;
  if (lr_tensor().defined()) lr_tensor().fill_(lr);
}

}  // namespace torchdion
