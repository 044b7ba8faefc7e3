#include "engine/loaded_state.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

#include "engine/checks.h"
#include "engine/state.h"
#include "linalg/memory.h"
#include "words.h"

namespace torchdion::engine {

namespace {

// FP32 counts to it in ones: a count of steps beyond would stay.
constexpr double kMostSteps = 0x1p24;

// The largest finite number of a dtype that states have; 0 of another.
double largest_of(at::ScalarType dtype) {
  if (!is_computed(dtype)) return 0;
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "torchdion::largest_of",
                                         [] { return static_cast<double>(std::numeric_limits<scalar_t>::max()); });
}

std::string shown_rows(int64_t begin, const at::Tensor& part) {
  if (part.numel() == 0) return "nothing";
  return c10::str("[", begin, ", ", begin + (part.dim() == 0 ? 1 : part.size(0)), ")");
}

// A part must be this rank's: another's may be as large.
void check_part(const SavedTensor& saved, const ParameterView& view) {
  const std::vector<int64_t>& whole = *saved.whole;
  std::vector<int64_t> own;
  int64_t begin = 0;
  if (view.part) {
    own = view.part->sizes_of(whole);
    begin = view.part->begin_of(whole);
    if (saved.tensor.sizes() == own && *saved.begin == begin) return;
  }
  const std::string expected = view.part ? c10::str("whole, or what this rank owns, ",
                                                    shown_rows(begin, at::empty(own, at::kMeta)), " of dimension 0")
                                         : "whole";
  TORCH_CHECK_VALUE(false, prefix(), "the state ", saved.name, " of ", view.name, " must be ", expected, ", got ",
                    shown_rows(*saved.begin, saved.tensor), " of ", shown(whole),
                    "; whole_state_dict() and torch.distributed.checkpoint move states to other ranks");
}

// This rank's of a whole state.
at::Tensor own_of(const algorithms::State& state, const at::Tensor& whole, const ParameterView& view,
                  const algorithms::Options& group) {
  if (view.part) return view.part->of(whole);
  if (view.layout.is_local()) return whole;
  return piece_of(whole, cuts_of(state, whole.sizes(), view, group), view.layout);
}

// Dense, floating-point, and with memory; `name`: the parameter's.
void check_loaded_tensor(const at::Tensor& tensor, const std::string& state, const std::string& name) {
  const bool is_dense = tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested() &&
                        at::isFloatingType(tensor.scalar_type());
  TORCH_CHECK_VALUE(
      is_dense, prefix(), "the state ", state, " of ", name, " must be a dense floating-point tensor, got ",
      tensor.defined()
          ? c10::str(shown_type(tensor.scalar_type()), ", ", tensor.is_nested() ? "nested" : shown(tensor.layout()))
          : "an undefined one");
  TORCH_CHECK_VALUE(linalg::has_memory(tensor), prefix(), "the state ", state, " of ", name, " must have memory, got ",
                    tensor.device(), " without any");
}

// A whole state of these sizes is one of a parameter of these whole sizes.
void check_loaded_sizes(const algorithms::State& state, at::IntArrayRef loaded, at::IntArrayRef sizes,
                        const algorithms::Options& group, const std::string& name) {
  if (state.shape == algorithms::StateShape::factor) {
    check_factor_sizes([&] { return name; }, sizes, loaded, form_of(group), title_of(state));
    return;
  }
  const std::vector<int64_t> expected = whole_state_sizes(state, sizes, group);
  TORCH_CHECK_VALUE(
      loaded == expected, prefix(), "the ", title_of(state), " of ", name, " of shape ", sizes, " must have ",
      at::IntArrayRef(expected) == sizes ? "that shape" : c10::str("the shape ", at::IntArrayRef(expected)), ", got ",
      loaded);
}

// A copy.
at::Tensor stored_as(const at::Tensor& state, at::ScalarType dtype, c10::Device device) {
  const at::Tensor copy = at::empty(state.sizes(), at::TensorOptions(dtype).device(device));
  const double largest = largest_of(dtype);
  if (largest >= largest_of(state.scalar_type())) return copy.copy_(state);
  // Widened first, as BF16 does not hold the largest number of FP16.
  const at::Tensor wide = state.scalar_type() == at::kDouble ? state : state.to(at::kFloat);
  return copy.copy_(at::where(wide.isinf(), wide, wide.clamp(-largest, largest)));
}

}  // namespace

ParameterState loaded(const SavedState& saved, const ParameterView& view, const algorithms::Options& group) {
  check_parameter(view.param, group, view.name);
  std::vector<std::string> names;
  for (const SavedTensor& one : saved.tensors) names.push_back(one.name);
  check_state_names(*view.algorithm, names, view.sizes(), view.name);
  TORCH_CHECK_VALUE(saved.step >= 0 && saved.step <= kMostSteps && saved.step == std::floor(saved.step), prefix(),
                    "the state step of ", view.name, " must be a whole number from 0 to ",
                    static_cast<int64_t>(kMostSteps), ", got ", saved.shown_step);
  ParameterState state;
  const c10::Device counter = group.flag("capturable") ? view.tensor.device() : c10::Device(c10::kCPU);
  state.step = at::full({}, saved.step, at::TensorOptions(at::kFloat).device(counter));
  for (const SavedTensor& one : saved.tensors) {
    const algorithms::State& declared = view.algorithm->states[algorithms::index_of(*view.algorithm, one.name)];
    check_loaded_tensor(one.tensor, one.name, view.name);
    std::vector<int64_t> whole = one.whole.value_or(one.tensor.sizes().vec());
    at::Tensor own = one.tensor;
    if (declared.shape == algorithms::StateShape::factor && view.numel() == 0) {  // whatever its sizes, of nothing
      whole = whole_state_sizes(declared, view.sizes(), group);
      own = at::empty(piece_of_state_sizes(declared, view.sizes(), view.tensor.sizes(), group, view.layout));
    } else {  // its shape is checked before its elements are copied: strides of 0 hold any number of them
      check_loaded_sizes(declared, whole, view.sizes(), group, view.name);
      if (one.begin) check_part(one, view);
      if (!one.whole) own = own_of(declared, own, view, group);
    }
    if (one.name == "momentum" && saved.divisor != 1) {  // never in a half, which may not hold it
      own = at::div(own.to(own.scalar_type() == at::kDouble ? at::kDouble : at::kFloat), saved.divisor);
    }
    const at::ScalarType dtype = group.dtype_or(declared.dtype_option, view.tensor.scalar_type());
    state.set(one.name, stored_as(own, dtype, view.tensor.device()).contiguous(), whole);
  }
  return state;
}

}  // namespace torchdion::engine
