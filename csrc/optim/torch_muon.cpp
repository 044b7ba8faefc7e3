#include "optim/torch_muon.h"

#include <ATen/core/List.h>

#include <array>
#include <vector>

#include "optim/entries.h"
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

}  // namespace

bool rename_options_of_torch_muon(Entries& options, const std::string& where) {
  if (!options.contains("ns_coefficients")) return false;
  const auto taken = [&](const char* name) {
    auto node = options.extract(name);
    return node.empty() ? c10::IValue() : node.mapped();
  };
  const c10::IValue coefficients = taken("ns_coefficients"), adjust = taken("adjust_lr_fn"),
                    momentum = taken("momentum");
  taken("eps");  // a bound on the norm below which torch's updates vanish
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
  return true;
}

bool rename_state_of_torch_muon(c10::impl::GenericDict& state) {
  const auto found = state.find("momentum_buffer");
  if (found == state.end()) return false;
  const c10::IValue buffer = found->value();
  state = state.copy();
  state.erase(state.find("momentum_buffer"));
  state.insert_or_assign("momentum", buffer);
  return true;
}

}  // namespace torchdion::optim
