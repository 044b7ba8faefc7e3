// A step that fails in its middle: the second QR of the step throws.
#include <ATen/core/LegacyTypeDispatch.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/serialize/archive.h>

#include "optim/model.h"

namespace torchdion {

namespace {

constexpr c10::DispatchKey kFailing = c10::DispatchKey::TESTING_ONLY_GenericMode;
int calls_before_failure = 0;

std::tuple<at::Tensor, at::Tensor> failing_qr(const at::Tensor& matrix, c10::string_view mode) {
  TORCH_CHECK(calls_before_failure-- > 0, "out of order");
  const c10::impl::ExcludeDispatchKeyGuard guard(kFailing);
  return at::linalg_qr(matrix, mode);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m) { m.impl("linalg_qr", failing_qr); }

class BrokenStep : public testing::Test {
 protected:
  const at::Tensor first = Model::leaf({6, 4}, 1), second = Model::leaf({9, 5}, 2);
  Dion optimizer{std::vector<at::Tensor>{first, second}, DionOptions(0.1).orthonormalize(Orthonormalize::qr)};

  void give_gradients() {
    for (at::Tensor param : {first, second}) param.mutable_grad() = normal(param.sizes(), 7);
  }

  void fail_after(int calls) {
    give_gradients();
    calls_before_failure = calls;
    const c10::impl::IncludeDispatchKeyGuard guard(kFailing);
    EXPECT_EQ(message_of([&] { optimizer.step(); }), "out of order");
  }
};

const char* const kSentence = "torchdion::Dion: the last step failed after 1 of 2 batches; load a checkpoint";

TEST_F(BrokenStep, IsSaidByEveryCallThatWouldUseWhatItLeft) {
  give_gradients();
  optimizer.step();
  fail_after(1);
  EXPECT_EQ(message_of([&] { optimizer.step(); }), kSentence);
  EXPECT_EQ(message_of([&] { optimizer.state_dict(); }), kSentence);
  torch::serialize::OutputArchive archive;
  EXPECT_EQ(message_of([&] { optimizer.save(archive); }), kSentence);
}

TEST_F(BrokenStep, IsMendedByLoadingAStateDict) {
  give_gradients();
  optimizer.step();
  Dion other({first, second});
  other.load_state_dict(optimizer.state_dict());
  const c10::IValue saved = other.state_dict();
  fail_after(1);
  optimizer.load_state_dict(saved);
  give_gradients();
  optimizer.step();
  EXPECT_EQ(optimizer.state_of(first).step().item<double>(), 2);
}

}  // namespace

}  // namespace torchdion
