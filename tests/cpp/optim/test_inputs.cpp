#include "optim/inputs.h"

#include <gtest/gtest.h>

#include "linalg/backend.h"
#include "optim/model.h"

namespace torchdion {

namespace {

std::vector<at::Tensor> drawn;

// A device without memory, in the place of one that this machine lacks.
TEST(StepInputs, HaveAQThatIsDrawnOnTheDeviceOfItsParameter) {
  linalg::Backend backend = linalg::backend_of(at::kCPU);
  backend.sketch_ = [](const at::Tensor& out, linalg::RandomMatrix, int64_t, int64_t, double) { drawn.push_back(out); };
  drawn.clear();
  const linalg::Backend* before = linalg::exchange_backend(at::kMeta, &backend);
  const at::Tensor X = at::zeros({3, 8, 10}, at::TensorOptions(at::kFloat).device(at::kMeta));
  X.mutable_grad() = at::zeros_like(X);
  Dion optimizer({X}, DionOptions().batch_dims(1).rank_fraction(0.5).Q_dtype(at::kBFloat16));
  EXPECT_THROW(optimizer.step(), c10::ValueError) << "no step is possible without memory";
  linalg::exchange_backend(at::kMeta, before);
  ASSERT_EQ(drawn.size(), 1u);
  EXPECT_TRUE(drawn[0].is_meta());
  EXPECT_EQ(drawn[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(drawn[0].sizes(), (std::vector<int64_t>{3, 8, 4}));
}

}  // namespace

}  // namespace torchdion
