#include "engine/checks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "sentences.h"

namespace torchdion::engine {

namespace {

at::Tensor strided(at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::zeros({100}).as_strided(sizes, strides);
}

TEST(CheckParameters, TakesEveryLayoutOfDistinctElements) {
  EXPECT_NO_THROW(check_parameters({at::zeros({6, 4}), at::zeros({6, 4}).t(), strided({6, 4}, {9, 1}),
                                    strided({6, 4}, {9, 2}), strided({2, 3, 4}, {1, 8, 2}), strided({1, 5}, {0, 1}),
                                    strided({0, 5}, {0, 0}), at::zeros({}), at::zeros({3}, at::kBFloat16)}));
}

TEST(CheckParameters, RefusesElementsThatShareMemory) {
  for (const at::Tensor& shared : {at::zeros({4}).expand({6, 4}), at::zeros({6, 1}).expand({6, 4}),
                                   strided({6, 4}, {2, 1}), strided({6, 4}, {4, 2}), strided({2, 3}, {1, 1})}) {
    EXPECT_THROW(check_parameters({at::zeros({2}), shared}), c10::ValueError) << shared.sizes() << shared.strides();
  }
}

TEST(CheckParameters, RefusesWhatIsNoDenseFloatingPointTensor) {
  for (const at::Tensor& wrong : {at::zeros({3}, at::kLong), at::zeros({3}, at::kComplexFloat),
                                  at::zeros({3}, at::device(at::kMeta)), at::eye(3).to_sparse()}) {
    EXPECT_THROW(check_parameters({wrong}), c10::ValueError) << wrong.toString();
  }
}

TEST(CheckStorage, CountsTheBytesFromTheFirstToTheLastElement) {
  const at::Tensor whole = at::zeros({100});
  const at::Tensor part = whole.as_strided({6, 4}, {10, 1}, 40);  // its last element is number 93
  whole.storage().unsafeGetStorageImpl()->set_nbytes(94 * 4);
  EXPECT_NO_THROW(check_storage({part}, {part}, "gradient"));
  whole.storage().unsafeGetStorageImpl()->set_nbytes(94 * 4 - 1);
  EXPECT_THROW(check_storage({part}, {part}, "gradient"), c10::ValueError);
  EXPECT_NO_THROW(check_storage({part}, {part.narrow(0, 0, 0)}, "gradient"));
}

TEST(CheckSteps, TakesNumbersThatCount) {
  const at::Tensor X = at::zeros({2, 3});
  EXPECT_NO_THROW(check_steps({X, X, X}, {at::zeros({}), at::ones({1}, at::kDouble), at::ones({}, at::kLong)}));
}

TEST(CheckSteps, RefusesWhatDoesNotCount) {
  const at::Tensor X = at::zeros({2, 3});
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const at::Tensor& wrong : {at::scalar_tensor(nan), at::scalar_tensor(infinity), at::scalar_tensor(-1.0),
                                  at::zeros({2}), at::zeros({0}), at::zeros({}, at::kHalf), at::zeros({}, at::kBool),
                                  at::zeros({}, at::kComplexFloat), at::zeros({}, at::device(at::kMeta))}) {
    EXPECT_THROW(check_steps({X, X}, {at::zeros({}), wrong}), c10::ValueError) << wrong.toString();
  }
}

TEST(CheckNumber, RefusesWhatIsNotOneRealNumber) {
  EXPECT_EQ(sentence_of<c10::ValueError>([] { check_number(at::full({1}, 2.0f), "found_inf"); }), "");
  EXPECT_EQ(sentence_of<c10::ValueError>([] { check_number(at::zeros({2}), "found_inf"); }),
            "torchdion: found_inf must be a tensor of one real number, got CPUFloatType of shape [2]");
  EXPECT_EQ(sentence_of<c10::ValueError>([] { check_number(at::zeros({}, at::kComplexFloat), "found_inf"); }),
            "torchdion: found_inf must be a tensor of one real number, got CPUComplexFloatType of shape []");
}

}  // namespace

}  // namespace torchdion::engine
