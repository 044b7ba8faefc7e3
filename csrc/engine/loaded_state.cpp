#include "engine/loaded_state.h"

#include <ATen/ops/empty.h>
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

// The largest finite number of a dtype that states have; 0 of another.
double largest_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::max();
    case at::kFloat:
      return std::numeric_limits<float>::max();
    case at::kBFloat16:
      return std::numeric_limits<at::BFloat16>::max();
    case at::kHalf:
      return std::numeric_limits<at::Half>::max();
    default:
      return 0;
  }
}

}  // namespace

void check_loaded_tensor(const at::Tensor& tensor, const std::string& state, const std::string& name) {
  const bool is_dense = tensor.defined() && tensor.layout() == at::kStrided && at::isFloatingType(tensor.scalar_type());
  TORCH_CHECK_VALUE(
      is_dense, prefix(), "the state ", state, " of ", name, " must be a dense floating-point tensor, got ",
      tensor.defined() ? c10::str(tensor.layout(), " ", shown(tensor.scalar_type())) : "an undefined one");
  TORCH_CHECK_VALUE(linalg::has_memory(tensor), prefix(), "the state ", state, " of ", name, " must have memory, got ",
                    tensor.device(), " without any");
}

void check_loaded_sizes(const algorithms::State& state, at::IntArrayRef loaded, at::IntArrayRef sizes,
                        const algorithms::Options& group, const std::string& name) {
  if (state.shape == algorithms::StateShape::factor) {
    check_factor_sizes(name, sizes, loaded, form_of(group), title_of(state));
    return;
  }
  const std::vector<int64_t> expected = whole_state_sizes(state, sizes, group);
  TORCH_CHECK_VALUE(
      loaded == expected, prefix(), "the ", title_of(state), " of ", name, " of shape ", sizes, " must have ",
      at::IntArrayRef(expected) == sizes ? "that shape" : c10::str("the shape ", at::IntArrayRef(expected)), ", got ",
      loaded);
}

void check_loaded_step(double count, const std::string& got, const std::string& name) {
  TORCH_CHECK_VALUE(count >= 0 && count <= kMostSteps && count == std::floor(count), prefix(), "the state step of ",
                    name, " must be a whole number from 0 to ", static_cast<int64_t>(kMostSteps), ", got ", got);
}

at::Tensor stored_as(const at::Tensor& state, at::ScalarType dtype, c10::Device device) {
  const at::Tensor copy = at::empty(state.sizes(), at::TensorOptions(dtype).device(device));
  const double largest = largest_of(dtype);
  if (largest >= largest_of(state.scalar_type())) return copy.copy_(state);
  // Widened first, as BF16 does not hold the largest number of FP16.
  const at::Tensor wide = state.scalar_type() == at::kDouble ? state : state.to(at::kFloat);
  return copy.copy_(at::where(wide.isinf(), wide, wide.clamp(-largest, largest)));
}

}  // namespace torchdion::engine
