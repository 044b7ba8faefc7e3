#include "optim/options.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "linalg/memory.h"
#include "optim/names.h"

namespace torchdion::optim {

namespace {

using Betas = DionOptions::Betas;

bool not_negative(double value) { return value >= 0 && std::isfinite(value); }
bool below_one(double value) { return value >= 0 && value < 1; }
bool in_pair(const std::optional<Betas>& betas) {
  return !betas || (below_one(std::get<0>(*betas)) && below_one(std::get<1>(*betas)));
}
bool is_fraction(double value) { return value > 0 && value <= 1; }
bool at_least_one(int64_t value) { return value >= 1; }
bool is_oversampling(double value) { return value >= 1 && std::isfinite(value); }
bool is_batch_dims(const std::optional<int64_t>& value) { return !value || *value >= 0; }
bool is_scalar_algorithm(Algorithm value) { return value == Algorithm::lion || value == Algorithm::adamw; }

template <class T>
bool is_named(T value) {
  for (const Named<T>& known : names<T>) {
    if (known.value == value) return true;
  }
  return false;
}

template <class T>
bool is_named_or_none(std::optional<T> value) {
  return !value || is_named(*value);
}

bool any(bool) { return true; }
bool any_integer(int64_t) { return true; }

// The one table of options: visit(name, value, allowed(value), words), no words where these are all values of an
// enumeration.
template <class Options, class Visit>
void for_each_option(Options& o, const Visit& visit) {
  visit("lr", o.lr(), not_negative, "a finite number ≥ 0");
  visit("lr_multiplier", o.lr_multiplier(), not_negative, "a number ≥ 0");
  visit("mu", o.mu(), below_one, "in [0, 1)");
  visit("betas", o.betas(), in_pair, "none or two numbers in [0, 1)");
  visit("weight_decay", o.weight_decay(), not_negative, "a number ≥ 0");
  visit("epsilon", o.epsilon(), not_negative, "a number ≥ 0");
  visit("rank_fraction", o.rank_fraction(), is_fraction, "in (0, 1]");
  visit("rank_multiple_of", o.rank_multiple_of(), at_least_one, "an integer ≥ 1");
  visit("orientation", o.orientation(), is_named<Orientation>, nullptr);
  visit("orthonormalize", o.orthonormalize(), is_named<Orthonormalize>, nullptr);
  visit("rcqr_oversample", o.rcqr_oversample(), is_oversampling, "a number ≥ 1");
  visit("algorithm", o.algorithm(), is_named<Algorithm>, nullptr);
  visit("scalar_algorithm", o.scalar_algorithm(), is_scalar_algorithm, "Algorithm::lion or Algorithm::adamw");
  visit("batch_dims", o.batch_dims(), is_batch_dims, "none or an integer ≥ 0");
  visit("blocks", o.blocks(), at_least_one, "an integer ≥ 1");
  visit("fan_in_first", o.fan_in_first(), any, "true or false");
  visit("skip_zero_gradients", o.skip_zero_gradients(), any, "true or false");
  visit("maximize", o.maximize(), any, "true or false");
  visit("capturable", o.capturable(), any, "true or false");
  visit("nonfinite", o.nonfinite(), is_named<Nonfinite>, nullptr);
  visit("precision", o.precision(), is_named<Precision>, nullptr);
  visit("seed", o.seed(), any_integer, "an integer");
  visit("momentum_dtype", o.momentum_dtype(), is_named_or_none<c10::ScalarType>, "none or a floating-point dtype");
  visit("Q_dtype", o.Q_dtype(), is_named_or_none<c10::ScalarType>, "none or a floating-point dtype");
  visit("variance_dtype", o.variance_dtype(), is_named_or_none<c10::ScalarType>, "none or a floating-point dtype");
}

template <class T>
std::string allowed_words(const char* words, const T&, bool in_state_dict) {
  if constexpr (std::is_enum_v<T>) {
    if (!words || in_state_dict) return one_of<T>(in_state_dict);
  }
  return words;
}

template <class T>
c10::IValue to_entry(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    for (const Named<T>& known : names<T>) {
      if (known.value == value) return std::string(known.name);
    }
    return std::to_string(static_cast<int>(value));
  } else {
    return value;
  }
}

c10::IValue to_entry(const Betas& betas) { return c10::ivalue::Tuple::create(std::get<0>(betas), std::get<1>(betas)); }

template <class T>
c10::IValue to_entry(const std::optional<T>& value) {
  return value ? to_entry(*value) : c10::IValue();
}

// These return whether the entry is of the option's type.
bool from_entry(const c10::IValue& entry, double& value) {
  if (entry.isTensor()) {  // a tensor lr
    const at::Tensor& tensor = entry.toTensor();
    const at::ScalarType dtype = linalg::has_memory(tensor) ? tensor.scalar_type() : at::ScalarType::Undefined;
    if (!at::isFloatingType(dtype) && !at::isIntegralType(dtype, /*includeBool=*/false)) return false;
    if (tensor.numel() != 1) return false;
    value = tensor.item<double>();
    return true;
  }
  if (!entry.isDouble() && !entry.isInt()) return false;
  value = entry.toScalar().toDouble();
  return true;
}

bool from_entry(const c10::IValue& entry, int64_t& value) {
  if (!entry.isInt()) return false;
  value = entry.toInt();
  return true;
}

bool from_entry(const c10::IValue& entry, bool& value) {
  if (!entry.isBool()) return false;
  value = entry.toBool();
  return true;
}

bool from_entry(const c10::IValue& entry, Betas& value) {
  std::vector<c10::IValue> pair;
  if (entry.isTuple()) pair = entry.toTupleRef().elements().vec();
  if (entry.isList()) pair = entry.toListRef().vec();
  return pair.size() == 2 && from_entry(pair[0], std::get<0>(value)) && from_entry(pair[1], std::get<1>(value));
}

template <class T>
requires std::is_enum_v<T>
bool from_entry(const c10::IValue& entry, T& value) {
  if (!entry.isString()) return false;
  for (const Named<T>& known : names<T>) {
    if (entry.toStringRef() == known.name) {
      value = known.value;
      return true;
    }
  }
  return false;
}

template <class T>
bool from_entry(const c10::IValue& entry, std::optional<T>& value) {
  if (entry.isNone()) {
    value.reset();
    return true;
  }
  T inner{};
  if (!from_entry(entry, inner)) return false;
  value = inner;
  return true;
}

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
  TORCH_CHECK_VALUE(is_number, "torchdion::Dion: ", name, " must be a tensor of one floating-point number, got ",
                    rate.toString(), " of shape ", rate.sizes(), where);
  if (!rate.is_cpu()) return;
  TORCH_CHECK_VALUE(not_negative(rate.item<double>()), "torchdion::Dion: ", name,
                    " must hold a finite number ≥ 0, got ", shown(rate.item<double>()), where);
}

// What makes the host wait for the device.
void check_capturable(const DionOptions& options, const std::string& where) {
  const auto check = [&](bool waits, const char* what) {
    TORCH_CHECK_VALUE(!waits, "torchdion::Dion: ", what,
                      " cannot be combined with capturable(true): the host would wait for the device", where);
  };
  check(options.nonfinite() == Nonfinite::raise, "nonfinite(Nonfinite::raise)");
  check(options.orthonormalize() == Orthonormalize::qr, "orthonormalize(Orthonormalize::qr)");
}

}  // namespace

std::string shown(double value) {
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

std::string entry_text(const c10::IValue& entry) {
  const auto fits = [](const std::string& text) {
    return text.size() <= 100 &&
           std::none_of(text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c); });
  };
  const bool is_shown = entry.isNone() || entry.isBool() || entry.isInt() || entry.isDouble() ||
                        (entry.isString() && fits(entry.toStringRef()));
  return is_shown ? c10::str(entry) : entry.tagKind();
}

double lr_of(const DionOptions& options) { return number_of(options.lr(), options.lr_tensor()); }
double weight_decay_of(const DionOptions& options) {
  return number_of(options.weight_decay(), options.weight_decay_tensor());
}

void check_options(const DionOptions& options, const std::string& where) {
  for_each_option(options, [&](const char* name, const auto& value, const auto& allowed, const char* words) {
    TORCH_CHECK_VALUE(allowed(value), "torchdion::Dion: ", name, " must be ", allowed_words(words, value, false),
                      ", got ", shown(value), where);
  });
  TORCH_CHECK_VALUE(!options.fan_in_first() || options.blocks() == 1,
                    "torchdion::Dion: blocks cannot be combined with fan_in_first", where);
  check_rate("lr_tensor", options.lr_tensor(), where);
  check_rate("weight_decay_tensor", options.weight_decay_tensor(), where);
  if (options.capturable()) check_capturable(options, where);
}

Betas betas_of(const DionOptions& options) {
  if (options.betas()) return *options.betas();
  const Algorithm algorithm = options.algorithm() == Algorithm::dion ? options.scalar_algorithm() : options.algorithm();
  return algorithm == Algorithm::lion ? Betas{0.95, 0.98} : Betas{0.9, 0.95};
}

Entries to_entries(const DionOptions& options) {
  Entries entries;
  for_each_option(options, [&](const char* name, const auto& value, const auto&, const char*) {
    entries.emplace(name, to_entry(value));
  });
  entries["lr"] = lr_of(options);
  entries["weight_decay"] = weight_decay_of(options);
  entries["betas"] = to_entry(betas_of(options));
  return entries;
}

std::vector<std::pair<std::string, std::string>> shown_options(const DionOptions& options) {
  std::vector<std::pair<std::string, std::string>> all;
  DionOptions resolved = options;
  resolved.lr(lr_of(options)).weight_decay(weight_decay_of(options)).betas(betas_of(options));
  for_each_option(resolved, [&](const char* name, const auto& value, const auto&, const char*) {
    all.emplace_back(name, shown(value));
  });
  return all;
}

Entries from_entries(Entries entries, DionOptions& options, const std::string& where) {
  rename_saved_options(entries);
  Entries unknown = entries;
  for_each_option(options, [&](const char* name, auto& value, const auto&, const char* words) {
    const auto found = entries.find(name);
    if (found == entries.end()) return;
    TORCH_CHECK_VALUE(from_entry(found->second, value), "torchdion::Dion: ", name, " must be ",
                      allowed_words(words, value, true), ", got ", entry_text(found->second), where);
    unknown.erase(name);
  });
  check_options(options, where);
  return unknown;
}

}  // namespace torchdion::optim

namespace torchdion {

double DionOptions::get_lr() const { return optim::lr_of(*this); }

void DionOptions::set_lr(const double lr) {
  this->lr(lr);
  const at::NoGradGuard no_grad;
  if (lr_tensor().defined()) lr_tensor().fill_(lr);
}

}  // namespace torchdion
