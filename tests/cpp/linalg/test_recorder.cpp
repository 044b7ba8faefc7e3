#include "linalg/recorder.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "linalg/accumulate.h"
#include "linalg/backend.h"
#include "linalg/copy.h"
#include "linalg/gemm.h"
#include "linalg/operators.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

bool launches_nothing() { return backend_of(at::kCPU).multiplies_in_place; }

// The launches of this name that a call makes.
template <class Call>
std::vector<Launches> launches_of(const std::string& name, const Call& call) {
  const Recorder recorder;
  call();
  std::vector<Launches> found;
  for (const Launches& each : recorder.launches()) {
    if (each.name == name) found.push_back(each);
  }
  return found;
}

TEST(Recorder, ListsAKernelWithItsTypesBlocksAndWhatItReadsAndWrites) {
  if (launches_nothing()) GTEST_SKIP() << "of the operations on CUDA";
  const at::Tensor A = at::zeros({3, 100, 50}), B = at::ones({3, 100, 50}, at::kDouble);
  const std::vector<Launches> copies = launches_of("Copy<float, double>", [&] { copy_(Matrices(A), Matrices(B)); });
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].count, 1);
  EXPECT_EQ(copies[0].blocks, 3 * 3);  // of 2048 entries, each of one matrix
  EXPECT_EQ(copies[0].threads, 256);
  EXPECT_EQ(copies[0].work.bytes, 3 * 5000 * (4 + 8));
  const at::Tensor M = at::zeros({3, 100, 50}), G = at::ones({3, 100, 50}, at::kBFloat16);
  const std::vector<Launches> sums =
      launches_of("Accumulate<float, BFloat16>", [&] { accumulate_(Matrices(M), Matrices(G), {}); });
  ASSERT_EQ(sums.size(), 1u);
  EXPECT_EQ(sums[0].work.bytes, 3 * 5000 * (2 * 4 + 2));
}

TEST(Recorder, ListsTheKernelThatUpdatesByNarrowFactors) {
  if (launches_nothing()) GTEST_SKIP() << "of the operations on CUDA";
  const at::Tensor C = at::zeros({3, 200, 300});
  const auto updates = [&](int64_t depth, double beta) {
    const at::Tensor A = at::zeros({3, 200, depth}, at::kBFloat16), B = at::zeros({3, 300, depth}, at::kBFloat16);
    return launches_of("AddProduct<BFloat16>", [&] { gemm_(Matrices(C), Matrices(A), Matrices(B.mT()), 1, beta); });
  };
  ASSERT_EQ(updates(64, 1).size(), 1u);
  const Launches found = updates(64, 1)[0];
  EXPECT_EQ(found.blocks, 3 * 2 * 3);  // of 128 rows and columns
  EXPECT_EQ(found.work.bytes, 3 * (200 * 300 * 2 * 4 + 64 * (200 + 300) * 2));
  EXPECT_EQ(found.work.operations, 3 * 2 * 200 * 300 * 64);
  EXPECT_TRUE(updates(64, 0).empty());   // C is not read
  EXPECT_TRUE(updates(208, 1).empty());  // too deep, and deeper than C is high
  EXPECT_TRUE(updates(60, 1).empty());   // rows that begin anywhere
}

TEST(Recorder, ListsNoUploadOfPointersThatADeviceHasAlready) {
  if (launches_nothing()) GTEST_SKIP() << "of the operations on CUDA";
  const at::Tensor A = at::zeros({3, 4, 5}), B = at::ones({3, 4, 5});
  const auto uploads = [](const at::Tensor& from, const at::Tensor& to) {
    int64_t count = 0;
    for (const Launches& each : launches_of("Upload<460>", [&] { copy_(Matrices(to), Matrices(from)); })) {
      count += each.count;
    }
    return count;
  };
  EXPECT_EQ(uploads(A, B), 2);
  EXPECT_EQ(uploads(A, B), 0);
  EXPECT_EQ(uploads(B, A), 0);
  EXPECT_EQ(uploads(A.slice(0, 1), B.slice(0, 1)), 2);
  const at::Tensor others = at::zeros({600, 1, 1});  // no device keeps as many lists
  for (int64_t i = 0; i < 600; i += 2) copy_(Matrices(others[i]), Matrices(others[i + 1]));
  EXPECT_EQ(uploads(A, B), 2);
}

TEST(Recorder, CountsBytesOfAProductsResultTwiceWhereItIsRead) {
  if (launches_nothing()) GTEST_SKIP() << "of the operations on CUDA";
  const int64_t count = 4, m = 48, n = 32, k = 16;
  const at::Tensor C = normal({count, m, n}, 1, at::kFloat), A = normal({count, m, k}, 2, at::kFloat),
                   B = normal({count, k, n}, 3, at::kFloat), one = at::ones({1});
  const auto bytes_with = [&](const Factor& alpha, const Factor& beta) {
    const std::vector<Launches> products = launches_of(
        "cuBLAS FP32", [&] { gemm_(Matrices(C), Matrices(A), Matrices(B), alpha, beta, Precision::highest); });
    EXPECT_EQ(products.size(), 1u);
    EXPECT_EQ(products.at(0).work.operations, 2 * count * m * n * k);
    EXPECT_EQ(products.at(0).product.k, k);
    EXPECT_EQ(products.at(0).product.count, count);
    return products.at(0).work.bytes;
  };
  const int64_t operands = 4 * count * (m * k + k * n), result = 4 * count * m * n;
  EXPECT_EQ(bytes_with(1, 0), operands + result);
  EXPECT_EQ(bytes_with(1, 0.5), operands + 2 * result);
  EXPECT_EQ(bytes_with(Factor(one), Factor(one)), operands + 2 * result);  // the host does not know that β is 0
}

TEST(Recorder, CountsAnOperandThatAllProductsShareOnce) {
  if (launches_nothing()) GTEST_SKIP() << "of the operations on CUDA";
  const at::Tensor C = at::zeros({4, 48, 32}), S = normal({48, 16}, 2, at::kFloat),
                   B = normal({4, 16, 32}, 3, at::kFloat);
  const std::vector<Launches> products = launches_of("cuBLAS TF32", [&] {
    gemm_(Matrices(C), Matrices(S.expand({4, 48, 16})), Matrices(B), 1, 0, Precision::high);
  });
  ASSERT_EQ(products.size(), 1u);
  EXPECT_EQ(products[0].work.bytes, 4 * (48 * 16 + 4 * 16 * 32 + 4 * 48 * 32));
}

TEST(Recorder, MergesEqualLaunchesInTheOrderOfTheFirst) {
  const Recorder recorder;
  for (const char* name : {"b", "a", "b"}) record({.name = name, .work = {8, 1}});
  record({.name = "b", .work = {16, 1}});
  ASSERT_EQ(recorder.launches().size(), 3u);
  EXPECT_EQ(recorder.launches()[0].name, "b");
  EXPECT_EQ(recorder.launches()[0].count, 2);
  EXPECT_EQ(recorder.launches()[1].name, "a");
  EXPECT_EQ(recorder.launches()[2].work.bytes, 16);
}

TEST(Recorder, InsideOfAnotherOneListsItsOwnPartAndTheOtherAll) {
  const Recorder outer;
  record({.name = "before"});
  record_allocation(100);
  {
    const Recorder inner;
    record({.name = "inside"});
    record_allocation(40);
    record_allocation(-100);
    EXPECT_EQ(inner.launches().size(), 1u);
    EXPECT_EQ(inner.allocations().peak, 40);
    EXPECT_EQ(inner.allocations().count, 1);
  }
  record({.name = "after"});
  EXPECT_EQ(outer.launches().size(), 3u);
  EXPECT_EQ(outer.allocations().peak, 140);
  EXPECT_EQ(outer.allocations().bytes, 140);
  EXPECT_EQ(outer.allocations().live, 40);
}

TEST(Recorder, RecordsNothingOnceItsScopeWasLeftByAnException) {
  EXPECT_FALSE(is_recording());
  const auto failing = [] {
    const Recorder recorder;
    const RecordedOperators operators(at::kCPU);
    EXPECT_TRUE(is_recording());
    throw std::runtime_error("a step");
  };
  EXPECT_THROW(failing(), std::runtime_error);
  EXPECT_FALSE(is_recording());
  EXPECT_FALSE(c10::memoryProfilingEnabled());
  const Recorder recorder;
  at::zeros({3});
  EXPECT_TRUE(recorder.launches().empty());
  EXPECT_EQ(recorder.allocations().count, 0);
}

}  // namespace

}  // namespace torchdion::linalg
