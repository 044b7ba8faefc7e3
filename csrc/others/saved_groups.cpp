#include "others/saved_groups.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "algorithms/all.h"
#include "others/option_names.h"
#include "words.h"

namespace torchdion::others {

namespace {

// The entry of this name, which is taken out; None where there is none.
c10::IValue taken(Entries& group, const char* name) {
  const auto node = group.extract(name);
  return node.empty() ? c10::IValue() : node.mapped();
}

void rename(Entries& group, const char* theirs, const char* ours) {
  const c10::IValue value = taken(group, theirs);
  if (!value.isNone()) group.emplace(ours, value);
}

bool is_true(const c10::IValue& value) { return value.isBool() && value.toBool(); }
bool is_count(const c10::IValue& value) { return value.isInt() && value.toInt() >= 1; }
bool is_matrix(const std::vector<int64_t>& shape) { return shape.size() >= 2; }

// Gives the group an option that a key means. Throws c10::ValueError where it has another value.
void give(Entries& group, const char* option, int64_t meant, const char* key, const c10::IValue& value,
          const std::string& where) {
  const auto [beside, is_first] = group.emplace(option, meant);
  TORCH_CHECK_VALUE(is_first || is_same(beside->second, meant), prefix(), key, "=", entry_text(value), " means ",
                    option, "=", meant, ", got ", option, "=", entry_text(beside->second), " too", where);
}

// In the place of num_heads and split_sizes.
void resolve_blocks(Entries& group, const Shapes& shapes, const std::string& where) {
  const c10::IValue heads = taken(group, "num_heads"), sizes = taken(group, "split_sizes");
  const bool says_nothing = !sizes.isNone() && heads.isInt() && heads.toInt() == 1;
  if (!heads.isNone() && !says_nothing) {
    TORCH_CHECK_VALUE(is_count(heads), prefix(), "num_heads must be an integer ≥ 1, got ", entry_text(heads), where);
    give(group, "blocks", heads.toInt(), "num_heads", heads, where);
  }
  if (sizes.isNone()) return;
  const std::vector<c10::IValue> each = items_of(sizes);
  const bool are_alike = !each.empty() && std::all_of(each.begin(), each.end(), [&](const c10::IValue& size) {
    return is_count(size) && is_same(size, each.front());
  });
  TORCH_CHECK_VALUE(are_alike, prefix(), "split_sizes must be integers ≥ 1 that are alike, got ", entry_text(sizes),
                    where, "; blocks of unequal sizes are parameters of their own here");
  const auto blocks = static_cast<int64_t>(each.size());
  for (const std::vector<int64_t>& shape : shapes) {
    TORCH_CHECK_VALUE(!is_matrix(shape) || shape.front() == blocks * each.front().toInt(), prefix(),
                      "split_sizes must sum to the rows of each matrix, got ", entry_text(sizes), " for the shape ",
                      shown(at::IntArrayRef(shape)), where);
  }
  give(group, "blocks", blocks, "split_sizes", sizes, where);
}

// The leading dimensions that the package keeps, in the place of flatten.
void resolve_flatten(Entries& group, const Shapes& shapes, const std::string& where) {
  const c10::IValue flatten = taken(group, "flatten");
  if (flatten.isNone()) return;
  std::set<std::size_t> dims;
  for (const std::vector<int64_t>& shape : shapes) {
    if (is_matrix(shape)) dims.insert(shape.size());
  }
  std::string found;
  for (const std::size_t each : dims) found += c10::str(found.empty() ? "matrices of " : " and ", each);
  const bool is_clear = is_true(flatten) || (flatten.isBool() && dims.size() <= 1);
  TORCH_CHECK_VALUE(is_clear, prefix(),
                    "flatten must be True, or False of groups whose matrices have as many dimensions, got ",
                    flatten.isBool() ? found + " dimensions" : entry_text(flatten), where,
                    "; batch_dims of a group says which of them count matrices");
  if (entry(group, "batch_dims").isNone()) group.erase("batch_dims");  // which says nothing
  const int64_t batch_dims = is_true(flatten) || dims.empty() ? 0 : static_cast<int64_t>(*dims.begin()) - 2;
  give(group, "batch_dims", batch_dims, "flatten", flatten, where);
}

void rename_saved_by_dion_package(Entries& saved, const Shapes& shapes, const Entries& own, const std::string& where) {
  std::string algorithm = text_of(saved, "algorithm");
  if (algorithm == "nordion2") algorithm = "dion3";
  if (algorithm == "dion3") rename(saved, "mu", "ef_decay");
  rename(saved, "oversample", "rcqr_oversample");
  const c10::IValue first = taken(saved, "beta1"), second = taken(saved, "beta2");
  if (!first.isNone() && !second.isNone()) saved.emplace("betas", c10::ivalue::Tuple::create(first, second));
  taken(saved, "selection_scope");  // states are the same
  const c10::IValue sizes = entry(saved, "split_sizes"), adjust_lr = entry(saved, "adjust_lr");
  TORCH_CHECK_VALUE(algorithm != "normuon" || sizes.isNone() || adjust_lr.isNone(), prefix(),
                    "split_sizes of NorMuon must not be beside adjust_lr, which scales its mean squares, got ",
                    entry_text(sizes), " and ", entry_text(adjust_lr), where);
  const auto is_one_of = [&](const auto&... names) { return ((algorithm == names) || ...); };
  const bool has_stack = std::any_of(shapes.begin(), shapes.end(), [](const auto& shape) { return shape.size() > 2; });
  TORCH_CHECK_VALUE(
      !is_true(entry(saved, "flatten")) || !has_stack || !is_one_of("normuon", "dion2", "dion3"), prefix(),
      "flatten must be False where ", algorithm,
      " has updated parameters of more than two dimensions, whose last two are rows and columns in the dion package, "
      "got True",
      where);
  if (is_one_of("muon", "normuon", "dion2", "dion3")) {
    saved.emplace("batch_dims", entry(own, "batch_dims"));
  } else {
    saved.erase("flatten");
  }
  rename_keys_of_dion_package(saved, shapes, where);
}

// The name here of what torch calls adjust_lr_fn; null where torch does not have it.
const char* adjust_lr_of(const c10::IValue& saved) {
  if (saved.isNone() || is_same(saved, "original")) return "original";
  return is_same(saved, "match_rms_adamw") ? "rms_norm" : nullptr;
}

void rename_saved_by_torch_muon(Entries& saved, const std::string& where) {
  const c10::IValue jordans = std::make_tuple(3.4445, -4.7750, 2.0315);
  const c10::IValue coefficients = taken(saved, "ns_coefficients"), adjust = taken(saved, "adjust_lr_fn"),
                    momentum = taken(saved, "momentum");
  taken(saved, "eps");  // a bound on the norm below which torch's updates vanish
  TORCH_CHECK_VALUE(is_same(coefficients, jordans), prefix(), "ns_coefficients must be ", entry_text(jordans),
                    ", those of newton_schulz='jordan', got ", entry_text(coefficients), where);
  const char* adjust_lr = adjust_lr_of(adjust);
  TORCH_CHECK_VALUE(adjust_lr, prefix(), "adjust_lr_fn must be None, 'original' or 'match_rms_adamw', got ",
                    entry_text(adjust), where);
  TORCH_CHECK_VALUE(is_share(momentum), prefix(), "momentum must be in [0, 1), got ", entry_text(momentum), where);
  saved["algorithm"] = "muon";
  saved["mu"] = *number_of(momentum);
  saved["newton_schulz"] = "jordan";
  saved["adjust_lr"] = adjust_lr;
}

void rename_saved_by_torch_adamw(Entries& saved, const std::string& where) {
  const c10::IValue amsgrad = taken(saved, "amsgrad");
  TORCH_CHECK_VALUE(amsgrad.isBool() && !amsgrad.toBool(), prefix(), "amsgrad must be False, got ", entry_text(amsgrad),
                    where);
  const bool is_decoupled =
      !saved.contains("decoupled_weight_decay") || is_true(taken(saved, "decoupled_weight_decay"));
  const c10::IValue decay = entry(saved, "weight_decay");
  TORCH_CHECK_VALUE(is_decoupled || is_same(decay, 0), prefix(),
                    "weight_decay must be decoupled, as of torch.optim.AdamW, or 0, got ", entry_text(decay), where);
  for (const char* of_torch : {"foreach", "fused"}) taken(saved, of_torch);
  rename(saved, "eps", "epsilon");
}

bool are_updated_by_adamw(const Shapes& shapes, const Entries& own) {
  const c10::IValue batch_dims = entry(own, "batch_dims");
  return !shapes.empty() && std::all_of(shapes.begin(), shapes.end(), [&](const std::vector<int64_t>& shape) {
    return algorithms::algorithm_of(static_cast<int64_t>(shape.size()), text_of(own, "algorithm"),
                                    text_of(own, "scalar_algorithm"), batch_dims.isInt() ? batch_dims.toInt() : 0)
               .name == "adamw";
  });
}

}  // namespace

void rename_keys_of_dion_package(Entries& group, const Shapes& shapes, const std::string& where) {
  const std::string algorithm = text_of(group, "algorithm");
  if (algorithm == "nordion2") group["algorithm"] = "dion3";
  if (algorithm == "adam") group["algorithm"] = "adamw";
  resolve_blocks(group, shapes, where);
  resolve_flatten(group, shapes, where);
}

Saver rename_saved_group(Entries& saved, const Shapes& shapes, const Entries& own, const std::string& where) {
  if (saved.contains("scalar_algorithm")) return Saver::this_library;
  if (saved.contains("ns_coefficients")) {
    rename_saved_by_torch_muon(saved, where);
    return Saver::torch_muon;
  }
  if (saved.contains("amsgrad") && are_updated_by_adamw(shapes, own)) {
    rename_saved_by_torch_adamw(saved, where);
    return Saver::torch_adamw;
  }
  if (saved.contains("algorithm") && !saved.contains("amsgrad")) {
    rename_saved_by_dion_package(saved, shapes, own, where);
    return Saver::dion_package;
  }
  name_as_here(saved, own, where);
  return Saver::this_library;
}

std::map<std::string, std::string> states_of(Saver saver) {
  if (saver == Saver::torch_muon) return {{"momentum_buffer", "momentum"}};
  if (saver == Saver::torch_adamw) return {{"exp_avg", "momentum"}, {"exp_avg_sq", "variance"}};
  if (saver == Saver::dion_package) return {{"step_dev", "step"}};
  return {};
}

bool rename_state(c10::impl::GenericDict& state, Saver saver) {
  bool is_mean = false;
  if (saver != Saver::this_library) state = state.copy();
  for (const auto& [theirs, ours] : states_of(saver)) {
    const auto found = state.find(theirs);
    if (found == state.end()) continue;
    const c10::IValue value = found->value();
    state.erase(found);
    state.insert_or_assign(ours, value);
    is_mean = saver == Saver::torch_muon;
  }
  return is_mean;
}

}  // namespace torchdion::others
