// Where the allocator has put tensors changes no bit of a step on a GPU: ranks and restarts get the same.
#include <gtest/gtest.h>

#include "algorithms/shared.h"
#include "engine/step.h"
#include "engine/step_groups.h"
#include "linalg/backend.h"

namespace torchdion::engine {

namespace {

enum class Placement { own_allocations, shifted, one_after_another, in_reverse };

// Copies of equally large tensors in other places.
std::vector<at::Tensor> placed(const std::vector<at::Tensor>& tensors, Placement placement) {
  if (placement == Placement::own_allocations) return tensors;
  const int64_t count = static_cast<int64_t>(tensors.size()), numel = tensors[0].numel();
  const at::Tensor memory = at::empty({count * (numel + 4)}, tensors[0].options());
  std::vector<at::Tensor> moved;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = placement == Placement::in_reverse ? count - 1 - i : i;
    const int64_t begin = placement == Placement::shifted ? place * (numel + 3) + 1 : place * numel;
    moved.push_back(memory.narrow(0, begin, numel).view(tensors[i].sizes()).copy_(tensors[i]));
  }
  return moved;
}

struct PlacedMatrices {
  const char* name;
  int64_t count;
  at::ScalarType dtype;
  Precision precision;
  std::vector<int64_t> sizes = {12, 20}, q_sizes = {12, 4};
  MatrixForm form = {};
};

class StepAnywhere : public testing::TestWithParam<PlacedMatrices> {};

TEST_P(StepAnywhere, HasTheSameBits) {
  if (linalg::precision_on(at::kCPU, Precision::high) != Precision::high) GTEST_SKIP() << "of the operations on CUDA";
  const PlacedMatrices& c = GetParam();
  const auto stepped = [&](Placement placement) {
    Groups groups;
    Group group = dion_group(std::vector<DionParameter>(c.count, {c.sizes, c.q_sizes}), c.form);
    group.options.set("precision", algorithms::text_of(algorithms::kPrecision, c.precision));
    for (std::vector<at::Tensor>* list : {&group.X, &group.G, &group.states[kMomentum], &group.states[kQ]}) {
      for (at::Tensor& tensor : *list) tensor = tensor.to(c.dtype);
      *list = placed(*list, placement);
    }
    groups.all.push_back(group);
    for (int i = 0; i < 2; ++i) Step(groups, Nonfinite::propagate).run();
    return snapshot(groups);
  };
  const std::vector<at::Tensor> expected = stepped(Placement::own_allocations);
  for (Placement placement : {Placement::shifted, Placement::one_after_another, Placement::in_reverse}) {
    const std::vector<at::Tensor> found = stepped(placement);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(bitwise_equal(found[i], expected[i])) << "tensor " << i << ", placement " << int(placement);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, StepAnywhere,
    testing::Values(PlacedMatrices{"One", 1, at::kFloat, Precision::high},
                    PlacedMatrices{"Three", 3, at::kFloat, Precision::high},
                    PlacedMatrices{"ThreeUnrounded", 3, at::kFloat, Precision::highest},
                    PlacedMatrices{"ThreeOfFP64", 3, at::kDouble, Precision::high},
                    PlacedMatrices{"ThreeOfBF16", 3, at::kBFloat16, Precision::medium},
                    PlacedMatrices{"OddSizes", 3, at::kFloat, Precision::high, {7, 9}, {7, 3}},
                    PlacedMatrices{"OneStack", 1, at::kFloat, Precision::high, {3, 7, 9}, {3, 7, 2}, {.batch_dims = 1}},
                    PlacedMatrices{
                        "TwoStacks", 2, at::kFloat, Precision::high, {3, 7, 9}, {3, 7, 2}, {.batch_dims = 1}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace

}  // namespace torchdion::engine
