#include "optim/other_optimizers.h"

#include <ATen/core/List.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "algorithms/all.h"
#include "optim/entries.h"
#include "optim/other_names.h"
#include "words.h"

namespace torchdion::optim {

namespace {

constexpr std::array<double, 3> kJordan{3.4445, -4.7750, 2.0315};  // what torch calls ns_coefficients

bool are_jordans(const c10::IValue& saved) {
  std::vector<c10::IValue> numbers;
  if (saved.isTuple()) numbers = saved.toTupleRef().elements().vec();
  if (saved.isList()) numbers = saved.toListRef().vec();
  if (numbers.size() != kJordan.size()) return false;
  for (std::size_t i = 0; i < kJordan.size(); ++i) {
    if (!numbers[i].isDouble() || numbers[i].toDouble() != kJordan[i]) return false;
  }
  return true;
}

// What torch calls adjust_lr_fn: its name here, or none that torch does not have.
const char* adjust_lr_of(const c10::IValue& saved) {
  if (saved.isNone()) return "original";
  if (!saved.isString()) return nullptr;
  if (saved.toStringRef() == "original") return "original";
  return saved.toStringRef() == "match_rms_adamw" ? "rms_norm" : nullptr;
}

using Shapes = std::vector<at::IntArrayRef>;

bool updates_by_adamw(const Shapes& shapes, const Options& own, const std::string& where) {
  const engine::GroupOptions values = values_of(own, where);
  return std::all_of(shapes.begin(), shapes.end(), [&](at::IntArrayRef shape) {
    return algorithms::algorithm_of(static_cast<int64_t>(shape.size()), values.values).name == "adamw";
  });
}

// The entry of this name, which is taken out; none where there is none.
c10::IValue taken(Entries& options, const char* name) {
  auto node = options.extract(name);
  return node.empty() ? c10::IValue() : node.mapped();
}

void rename(Entries& options, const char* theirs, const char* ours) {
  auto node = options.extract(theirs);
  if (node.empty()) return;
  node.key() = ours;
  options.insert(std::move(node));
}

void rename_options_of_torch_muon(Entries& options, const std::string& where) {
  const c10::IValue coefficients = taken(options, "ns_coefficients"), adjust = taken(options, "adjust_lr_fn"),
                    momentum = taken(options, "momentum");
  taken(options, "eps");  // a bound on the norm below which torch's updates vanish
  TORCH_CHECK_VALUE(are_jordans(coefficients), prefix(),
                    "ns_coefficients must be (3.4445, -4.775, 2.0315), those of newton_schulz='jordan', got ",
                    entry_text(coefficients), where);
  const char* adjust_lr = adjust_lr_of(adjust);
  TORCH_CHECK_VALUE(adjust_lr, prefix(), "adjust_lr_fn must be None, 'original' or 'match_rms_adamw', got ",
                    entry_text(adjust), where);
  const bool is_number = momentum.isDouble() || momentum.isInt();
  const double mu = is_number ? momentum.toScalar().toDouble() : -1;
  TORCH_CHECK_VALUE(mu >= 0 && mu < 1, prefix(), "momentum must be in [0, 1), got ", entry_text(momentum), where);
  options["algorithm"] = "muon";
  options["mu"] = mu;
  options["newton_schulz"] = "jordan";
  options["adjust_lr"] = adjust_lr;
}

bool is_true(const c10::IValue& value) { return value.isBool() && value.toBool(); }

void rename_options_of_torch_adamw(Entries& options, const std::string& where) {
  const c10::IValue amsgrad = taken(options, "amsgrad");
  TORCH_CHECK_VALUE(amsgrad.isBool() && !amsgrad.toBool(), prefix(), "amsgrad must be False, got ", entry_text(amsgrad),
                    where);
  const bool is_adam = options.contains("decoupled_weight_decay") && !is_true(taken(options, "decoupled_weight_decay"));
  if (is_adam) {
    const c10::IValue decay = options.contains("weight_decay") ? options.at("weight_decay") : c10::IValue();
    const bool is_zero = (decay.isDouble() || decay.isInt()) && decay.toScalar().toDouble() == 0;
    TORCH_CHECK_VALUE(is_zero, prefix(), "weight_decay must be decoupled, as of torch.optim.AdamW, or 0, got ",
                      entry_text(decay), where);
  }
  for (const char* of_torch : {"foreach", "fused"}) taken(options, of_torch);
  rename(options, "eps", "epsilon");
}

std::string text_of(const Entries& options, const char* name) {
  const auto found = options.find(name);
  return found != options.end() && found->second.isString() ? found->second.toStringRef() : std::string();
}

// In the place of `flatten`, where a group says so, of the options and of the group that is to have them.
void resolve_flatten(Entries& options, const Shapes& shapes, const Options& own, const std::string& where) {
  const c10::IValue flatten = taken(options, "flatten");
  const std::string algorithm = text_of(options, "algorithm");
  if (!flatten.isBool() || algorithm == "dion" || algorithm == "lion" || algorithm == "adamw") return;
  int64_t dims = 0;
  for (const at::IntArrayRef shape : shapes) {
    const auto own_dims = static_cast<int64_t>(shape.size());
    if (own_dims < 2) continue;
    TORCH_CHECK_VALUE(
        flatten.toBool() || dims == 0 || dims == own_dims, prefix(),
        "flatten must be True, or False of groups whose matrices have as many dimensions, got matrices of ", dims,
        " and ", own_dims, " dimensions", where);
    TORCH_CHECK_VALUE(!flatten.toBool() || own_dims == 2 || algorithm == "muon", prefix(),
                      "flatten must be False where ", algorithm,
                      " has updated parameters of more than two dimensions, whose last two are rows and columns in the "
                      "dion package, got True",
                      where);
    dims = own_dims;
  }
  const int64_t batch_dims = flatten.toBool() || dims == 0 ? 0 : dims - 2;
  TORCH_CHECK_VALUE(own.batch_dims().value_or(batch_dims) == batch_dims, prefix(), "flatten=", entry_text(flatten),
                    " means batch_dims=", batch_dims, ", got batch_dims=", own.batch_dims().value_or(0), " too", where);
  options["batch_dims"] = batch_dims;
}

// In the place of num_heads and split_sizes.
void resolve_blocks(Entries& options, const Shapes& shapes, const std::string& where) {
  const c10::IValue heads = taken(options, "num_heads"), sizes = taken(options, "split_sizes");
  const bool says_nothing = !sizes.isNone() && heads.isInt() && heads.toInt() == 1;
  if (!heads.isNone() && !says_nothing) options["blocks"] = heads;
  if (sizes.isNone()) return;
  std::vector<c10::IValue> each;
  if (sizes.isTuple()) each = sizes.toTupleRef().elements().vec();
  if (sizes.isList()) each = sizes.toListRef().vec();
  const bool are_alike = !each.empty() && std::all_of(each.begin(), each.end(), [&](const c10::IValue& size) {
    return size.isInt() && size.toInt() >= 1 && each.front().isInt() && size.toInt() == each.front().toInt();
  });
  TORCH_CHECK_VALUE(are_alike, prefix(), "split_sizes must be integers ≥ 1 that are alike, got ", entry_text(sizes),
                    where, "; blocks of unequal sizes are parameters of their own here");
  const auto blocks = static_cast<int64_t>(each.size());
  for (const at::IntArrayRef shape : shapes) {
    TORCH_CHECK_VALUE(shape.size() < 2 || shape.front() == blocks * each.front().toInt(), prefix(),
                      "split_sizes must sum to the rows of each matrix, got ", entry_text(sizes), " for the shape ",
                      shape, where);
  }
  const auto [beside, is_first] = options.emplace("blocks", blocks);
  TORCH_CHECK_VALUE(is_first || (beside->second.isInt() && beside->second.toInt() == blocks), prefix(),
                    "split_sizes=", entry_text(sizes), " means blocks=", blocks,
                    ", got blocks=", entry_text(beside->second), " too", where);
}

void rename_options_of_dion_package(Entries& options, const Shapes& shapes, const Options& own,
                                    const std::string& where) {
  if (text_of(options, "algorithm") == "nordion2") options["algorithm"] = "dion3";
  if (text_of(options, "algorithm") == "dion3") rename(options, "mu", "ef_decay");
  taken(options, "selection_scope");  // states are the same
  const auto adjust = options.find("adjust_lr");
  const bool is_adjusted = adjust != options.end() && !adjust->second.isNone();
  const auto split = options.find("split_sizes");
  const bool is_split = split != options.end() && !split->second.isNone();
  TORCH_CHECK_VALUE(!(text_of(options, "algorithm") == "normuon" && is_split && is_adjusted), prefix(),
                    "split_sizes of NorMuon must not be beside adjust_lr, which scales its mean squares", where);
  resolve_flatten(options, shapes, own, where);
  rename(options, "oversample", "rcqr_oversample");
  const c10::IValue first = taken(options, "beta1"), second = taken(options, "beta2");
  if (!first.isNone() && !second.isNone()) options.emplace("betas", c10::ivalue::Tuple::create(first, second));
  resolve_blocks(options, shapes, where);
}

// What each calls states.
std::vector<std::pair<const char*, const char*>> states_of(Saver saver) {
  switch (saver) {
    case Saver::torch_muon:
      return {{"momentum_buffer", "momentum"}};
    case Saver::torch_adamw:
      return {{"exp_avg", "momentum"}, {"exp_avg_sq", "variance"}};
    case Saver::dion_package:
      return {{"step_dev", "step"}};
    default:
      return {};
  }
}

}  // namespace

Saver rename_options_of_others(Entries& options, const Shapes& shapes, const Options& own, const std::string& where) {
  if (options.contains("scalar_algorithm")) return Saver::this_library;
  if (options.contains("ns_coefficients")) {
    rename_options_of_torch_muon(options, where);
    return Saver::torch_muon;
  }
  if (options.contains("amsgrad")) {
    if (!updates_by_adamw(shapes, own, where)) return Saver::this_library;
    rename_options_of_torch_adamw(options, where);
    return Saver::torch_adamw;
  }
  if (!options.contains("algorithm")) {
    name_as_here(options, own, where);
    return Saver::this_library;
  }
  rename_options_of_dion_package(options, shapes, own, where);
  return Saver::dion_package;
}

bool rename_state_of_others(c10::impl::GenericDict& state, Saver saver) {
  bool is_copied = false, is_buffer = false;
  for (const auto& [theirs, ours] : states_of(saver)) {
    const auto found = state.find(theirs);
    if (found == state.end()) continue;
    const c10::IValue value = found->value();
    if (!is_copied) state = state.copy();
    is_copied = true;
    is_buffer = saver == Saver::torch_muon;
    state.erase(state.find(theirs));
    state.insert_or_assign(ours, value);
  }
  return is_buffer;
}

}  // namespace torchdion::optim
