#include "linalg/operators.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "linalg/recorder.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

TEST(RecordedOperators, AreThoseThatWriteWithTheirBytesAndNoViews) {
  const at::Tensor A = normal({6, 5}, 1, at::kFloat), target = normal({6, 5}, 2, at::kFloat);
  const Recorder recorder;
  std::optional<RecordedOperators> operators(at::kCPU);
  A.t().narrow(0, 1, 2).unsqueeze(0);
  target.copy_(A);
  target.mul_(A);
  const at::Tensor number = A.select(1, 0).sum();
  EXPECT_TRUE(std::isfinite(number.item<float>()));
  operators.reset();
  target.fill_(1);
  std::vector<std::pair<std::string, int64_t>> found;
  for (const Launches& each : recorder.launches()) found.emplace_back(each.name, each.work.bytes);
  const std::vector<std::pair<std::string, int64_t>> expected{
      {"aten::copy_", 2 * 120}, {"aten::mul_", 3 * 120}, {"aten::sum", 24 + 4}, {"aten::item", 4}};
  EXPECT_EQ(found, expected);
}

TEST(RecordedOperators, ReportAllocationsAndHowMuchLivesAtMost) {
  const Recorder recorder;
  const RecordedOperators operators(at::kCPU);
  for (int i = 0; i < 3; ++i) at::zeros({1000}, at::kDouble);
  EXPECT_EQ(recorder.allocations().count, 3);
  EXPECT_EQ(recorder.allocations().bytes, 24'000);
  EXPECT_EQ(recorder.allocations().peak, 8'000);
  EXPECT_EQ(recorder.allocations().live, 0);
}

TEST(RecordedOperators, OfTwoTypesOfDevicesAtATimeAreRefused) {
  const RecordedOperators outer(at::kCUDA);
  EXPECT_NO_THROW(RecordedOperators inner(at::kCUDA));
  EXPECT_THROW(RecordedOperators inner(at::kCPU), c10::ValueError);
}

TEST(RecordedOperators, OfOtherDevicesAreLeftOut) {
  const Recorder recorder;
  const RecordedOperators operators(at::kCUDA);
  at::zeros({1000});
  EXPECT_TRUE(recorder.launches().empty());
  EXPECT_EQ(recorder.allocations().count, 0);
}

}  // namespace

}  // namespace torchdion::linalg
