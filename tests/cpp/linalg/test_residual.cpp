#include "linalg/residual.h"

#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

#include "linalg/backend.h"
#include "linalg/column_normalize.h"
#include "tensors.h"

namespace torchdion::linalg {

namespace {

// By sorting.
at::Tensor expected_scales(const at::Tensor& lengths, double least) {
  at::Tensor scales = at::zeros({lengths.size(0)}, at::kDouble);
  for (int64_t i = 0; i < lengths.size(0); ++i) {
    const at::Tensor present = lengths[i].masked_select(lengths[i].ne(0));
    if (present.numel() == 0) continue;
    const at::Tensor sorted = std::get<0>(present.sort());
    const at::Tensor mean = sorted.narrow(0, 0, (present.numel() + 3) / 4).mean();
    scales[i] = 1 / std::max(mean.item<double>(), least * present.max().item<double>());
  }
  return scales;
}

TEST(ResidualScales, OfNoMatricesAreNone) {
  EXPECT_EQ(residual_scales(at::ones({0, 3}, at::kDouble), 0, at::kDouble).numel(), 0);
}

TEST(ResidualScales, AreThoseOfTheShortestQuarterOfColumnsThatAreNotZero) {
  for (const auto& [count, r] : {std::pair{1, 1}, {2, 3}, {3, 4}, {1, 5}, {2, 64}, {3, 700}, {1, 4099}}) {
    for (const double share_of_zeros : {0.0, 0.3, 1.0}) {
      SCOPED_TRACE(testing::Message() << count << " of " << r << ", zeros " << share_of_zeros);
      at::Tensor lengths = normal({count, r}, 1).exp();
      lengths.masked_fill_(normal({count, r}, 2).abs().lt(0.4).logical_and_(at::scalar_tensor(share_of_zeros > 0)), 0);
      if (share_of_zeros == 1) lengths.zero_();
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        const at::Tensor scales = residual_scales(lengths.square(), 0, dtype);
        EXPECT_EQ(scales.scalar_type(), dtype);
        const at::Tensor expected = expected_scales(lengths, 0);
        const at::Tensor error = (scales.to(at::kDouble) - expected).abs();
        EXPECT_TRUE(error.le(expected * (2 * unit_roundoff(dtype) + 1e-14)).all().item<bool>());
      }
    }
  }
}

TEST(ResidualScales, AreOfEqualLengthsTheirInverse) {
  const at::Tensor scales = residual_scales(at::full({2, 7}, 16.0, at::kDouble), 0, at::kDouble);
  EXPECT_TRUE(at::equal(scales, at::full({2}, 0.25, at::kDouble)));
}

TEST(ResidualScales, TakeNoSigmaBelowTheRoundingOfTheLongestColumn) {
  const at::Tensor lengths = at::tensor({1e-9, 1e-9, 1e-9, 4.0}, at::kDouble).unsqueeze(0);
  EXPECT_NEAR(residual_scales(lengths.square(), 1e-3, at::kDouble).item<double>(), 250, 1e-9);
  EXPECT_NEAR(residual_scales(lengths.square(), 1e-12, at::kDouble).item<double>(), 1e9, 1);
}

TEST(ResidualScales, AreFiniteOfTheShortestLengthsAndNaNOfOneThatIs) {
  const at::Tensor lengths = at::full({1, 4}, 1e-42, at::kDouble);
  EXPECT_EQ(residual_scales(lengths.square(), 0, at::kFloat).item<float>(), std::numeric_limits<float>::max());
  const at::Tensor squares = at::ones({2, 9}, at::kDouble);
  squares[1][5] = std::nan("");
  const at::Tensor scales = residual_scales(squares, 0, at::kFloat);
  EXPECT_EQ(scales[0].item<float>(), 1);
  EXPECT_TRUE(std::isnan(scales[1].item<float>()));
}

// Of factors whose rows have any lengths.
SignFloor some_floor(int64_t count, int64_t rows, int64_t cols) {
  return {0.1, 0.05, normal({count, rows}, 8).square(), normal({count, cols}, 9).square()};
}

at::Tensor least(const SignFloor& floor, const at::Tensor& whole, const at::Tensor& part) {
  const at::Tensor lengths = floor.left.sqrt().unsqueeze(2) * floor.right.sqrt().unsqueeze(1);
  return floor.of_entries * (whole.abs() + part.abs()) + floor.of_factors * lengths;
}

class TakeSigns : public testing::TestWithParam<at::ScalarType> {};

TEST_P(TakeSigns, AreThoseOfWhatThePartLeavesInEveryLayout) {
  const at::ScalarType of_U = GetParam() == at::kDouble ? at::kDouble : at::kFloat;
  for (const auto& [rows, cols] : {std::pair{1, 1}, {40, 700}, {33, 65}, {7, 16}}) {
    const at::Tensor L0 = normal({2, rows, cols}, 1, GetParam()), U0 = normal({2, rows, cols}, 2, of_U);
    const at::Tensor whole = L0.to(at::kDouble), part = U0.to(at::kDouble), rest = whole - part;
    const SignFloor floor = some_floor(2, rows, cols);
    const at::Tensor expected = rest.sign().masked_fill(rest.abs().le(least(floor, whole, part)), 0);
    for (const bool by_columns : {false, true}) {
      for (const double feedback : {0.0, 0.25}) {
        const at::Tensor U = laid_out(U0, by_columns).clone(), L = laid_out(L0, by_columns).clone();
        take_signs_(Matrices(U), Matrices(L), feedback, floor);
        EXPECT_TRUE(at::equal(U.to(at::kDouble), expected));
        if (feedback == 0) {
          EXPECT_TRUE(bitwise_equal(L, L0));
        } else {
          EXPECT_LE(relative_error(L, whole - feedback * part), 2 * unit_roundoff(GetParam()) + 0x1p-24);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, TakeSigns, testing::ValuesIn(kEveryDtype));

TEST(TakeSignsRule, OfNothingIsNothingAndNaNStays) {
  const at::Tensor L = at::tensor({0.0F, 1.0F, std::nanf("")}).unsqueeze(0);
  const at::Tensor U = at::tensor({0.0F, 1.0F, 1.0F}).unsqueeze(0);
  take_signs_(Matrices(U), Matrices(L), 0, {});
  EXPECT_EQ(U[0][0].item<float>(), 0);
  EXPECT_EQ(U[0][1].item<float>(), 0);
  EXPECT_TRUE(std::isnan(U[0][2].item<float>()));
}

// Matrices that kernels of GPUs move in one pass; the weights of the last of several stay.
struct Moved {
  struct Case {
    int64_t count, rows, cols, r;
    double feedback;
    Decay decay;
    bool is_odd;  // odd: matrices lie where no run of entries begins
  };
  static constexpr Case kCases[] = {{1, 128, 128, 64, 0.1, Decay::all, false},
                                    {2, 130, 300, 8, 0.1, Decay::cautious, false},
                                    {3, 7, 33, 8, 0.25, Decay::all, false},
                                    {1, 200, 96, 136, 0, Decay::all, false},
                                    {2, 40, 260, 16, 0.1, Decay::all, true}};

  // The operand: what L and the factors are stored in.
  Moved(const Case& c, at::ScalarType operand)
      : decay(c.decay),
        X(placed(c, 1, at::kFloat)),
        M(placed(c, 2, at::kFloat)),
        L(placed(c, 3, operand)),
        P(factor(c, c.rows, 4, operand)),
        R(factor(c, c.cols, 5, operand)),
        P2(factor(c, c.rows, 6, operand)),
        V(factor(c, c.cols, 7, operand)),
        unchanged(at::zeros({c.count})),
        x(X.to(at::kDouble)) {
    unchanged[c.count - 1] = c.count > 1 ? 1 : 0;
  }

  static at::Tensor placed(const Case& c, uint64_t seed, at::ScalarType dtype) {
    const int64_t more = c.is_odd ? 1 : 0;
    return normal({c.count, c.rows, c.cols + more}, seed, dtype).narrow(2, more, c.cols);
  }
  // Numbers that tensor cores read whole: 10 bits after the first, or 7.
  static at::Tensor factor(const Case& c, int64_t rows, uint64_t seed, at::ScalarType operand) {
    const at::Tensor entries = normal({c.count, rows, c.r}, seed, at::kFloat).div(std::sqrt(c.r));
    return entries.view(at::kInt).bitwise_and(~0x1fff).view(at::kFloat).to(operand);
  }
  static at::Tensor product(const at::Tensor& A, const at::Tensor& B) {
    return A.to(at::kDouble).matmul(B.to(at::kDouble).mT());
  }

  // What an update makes of X as it was.
  at::Tensor expected(const at::Tensor& update) const {
    at::Tensor keep = at::full_like(x, 0.75);
    if (decay == Decay::cautious) keep.masked_fill_((x * update).le(0), 1);
    return at::where(unchanged.view({-1, 1, 1}).ne(0), x, keep * x - 0.5 * update);
  }

  DirectionRule rule() const { return {decay, {.unchanged = unchanged.const_data_ptr<float>()}}; }

  Decay decay;
  at::Tensor X, M, L, P, R, P2, V, unchanged, x, factors = at::tensor({-0.5F, 0.75F});
};

class Moves : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Moves, BySignsInOnePassOverWeightsAndMomentum) {
  if (backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CUDA";
  for (const Moved::Case& c : Moved::kCases) {
    SCOPED_TRACE(testing::Message() << c.count << " of " << c.rows << "×" << c.cols << ", r = " << c.r);
    const Moved of(c, GetParam());
    const at::Tensor m = of.M.to(at::kDouble), l = of.L.to(at::kDouble), part = Moved::product(of.P, of.R);
    const SignFloor floor = some_floor(c.count, c.rows, c.cols);
    const at::Tensor rest = l - part, sign = rest.sign().masked_fill(rest.abs().le(least(floor, l, part)), 0);
    const at::Tensor expected = of.expected(Moved::product(of.P2, of.V) + 0.25 * sign);
    ASSERT_TRUE(move_by_signs_({Matrices(of.X), Matrices(of.M), Matrices(of.L), Matrices(of.P), Matrices(of.R),
                                Matrices(of.P2), Matrices(of.V), of.factors, of.rule(), 0.25, c.feedback, floor}));
    // Signs of what is about as long as the noise are those of rounding.
    EXPECT_LE((of.X.to(at::kDouble) - expected).abs().gt(1e-3).sum().item<int64_t>(), of.x.numel() / 1000 + 1);
    EXPECT_LE((of.X.to(at::kDouble) - expected).abs().median().item<double>(), 1e-5);
    EXPECT_LE(relative_error(of.M, m - c.feedback * part), 1e-5);
  }
}

TEST_P(Moves, ByAScaledRestInOnePassOverWeights) {
  if (backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CUDA";
  for (const Moved::Case& c : Moved::kCases) {
    SCOPED_TRACE(testing::Message() << c.count << " of " << c.rows << "×" << c.cols << ", r = " << c.r);
    const Moved of(c, GetParam());
    const at::Tensor scales = at::linspace(0.5, 2, c.count);
    const at::Tensor scaled = scales.to(at::kDouble).view({-1, 1, 1}) * of.L.to(at::kDouble);
    const at::Tensor expected = of.expected(Moved::product(of.P, of.V) + scaled);
    ASSERT_TRUE(move_by_scaled_(
        {Matrices(of.X), Matrices(of.L), Matrices(of.P), Matrices(of.V), of.factors, scales, of.rule()}));
    // A weight of about no length, and an update of none, decay by the sign of rounding.
    EXPECT_LE((of.X.to(at::kDouble) - expected).abs().gt(1e-4).sum().item<int64_t>(),
              c.decay == Decay::cautious ? 1 : 0);
    EXPECT_LE((of.X.to(at::kDouble) - expected).abs().median().item<double>(), 1e-6);
  }
}

TEST_P(Moves, AlikeByFactorsThatBeginAnywhere) {
  if (backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CUDA";
  const Moved::Case c = {2, 40, 72, 16, 0.1, Decay::all, false};
  const Moved aligned(c, GetParam()), elsewhere(c, GetParam());
  const auto moved = [&](const Moved& of, const at::Tensor& V) {
    const SignMove move = {Matrices(of.X), Matrices(of.M),  Matrices(of.L), Matrices(of.P),
                           Matrices(of.R), Matrices(of.P2), Matrices(V),    of.factors};
    ASSERT_TRUE(move_by_signs_(move));
  };
  const at::Tensor V = at::empty({c.count, c.cols, c.r + 8}, GetParam()).narrow(2, 1, c.r).copy_(elsewhere.V);
  moved(aligned, aligned.V);
  moved(elsewhere, V);
  EXPECT_TRUE(bitwise_equal(elsewhere.X, aligned.X));
}

// At any precision Q may be stored in 16 bits.
TEST_P(Moves, ByFactorsOfAnotherDtype) {
  if (backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CUDA";
  const Moved::Case c = {1, 40, 72, 16, 0, Decay::all, false};
  for (const at::ScalarType other : {at::kHalf, at::kBFloat16, at::kFloat}) {
    const Moved of(c, GetParam()), same(c, GetParam());
    const at::Tensor V = of.V.to(other), stored = V.to(GetParam());
    for (const auto& [moved, by] : {std::pair(&of, &V), std::pair(&same, &stored)}) {
      ASSERT_TRUE(move_by_signs_({Matrices(moved->X), Matrices(moved->M), Matrices(moved->L), Matrices(moved->P),
                                  Matrices(moved->R), Matrices(moved->P2), Matrices(*by), moved->factors}));
    }
    EXPECT_TRUE(bitwise_equal(of.X, same.X));
  }
}

// What tensor cores read of FP32.
TEST(MoveBySigns, DropsWhatTF32HasNotOfFactors) {
  if (backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CUDA";
  const Moved::Case c = {1, 40, 72, 16, 0, Decay::all, false};
  const Moved read(c, at::kFloat), longer(c, at::kFloat);
  const auto moved = [](const Moved& of, const at::Tensor& V) {
    ASSERT_TRUE(move_by_signs_({Matrices(of.X), Matrices(of.M), Matrices(of.L), Matrices(of.P), Matrices(of.R),
                                Matrices(of.P2), Matrices(V), of.factors}));
  };
  moved(read, read.V);
  moved(longer, longer.V.view(at::kInt).bitwise_or(0x1fff).view(at::kFloat));
  EXPECT_TRUE(bitwise_equal(longer.X, read.X));
}

INSTANTIATE_TEST_SUITE_P(Operands, Moves, testing::Values(at::kBFloat16, at::kFloat));

TEST(MoveBySigns, SubtractsFromTheMomentumThatItReads) {
  if (backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CUDA";
  for (const Moved::Case& c : Moved::kCases) {
    SCOPED_TRACE(testing::Message() << c.count << " of " << c.rows << "×" << c.cols << ", r = " << c.r);
    const Moved apart(c, at::kFloat), both(c, at::kFloat);
    const auto move = [&](const Moved& of, const at::Tensor& M) {
      ASSERT_TRUE(move_by_signs_({Matrices(of.X),
                                  Matrices(M),
                                  Matrices(of.L),
                                  Matrices(of.P),
                                  Matrices(of.R),
                                  Matrices(of.P2),
                                  Matrices(of.V),
                                  of.factors,
                                  {},
                                  0.25,
                                  c.feedback}));
    };
    const at::Tensor M = apart.L.clone();
    move(apart, M);
    move(both, both.L);
    EXPECT_TRUE(bitwise_equal(both.X, apart.X));
    EXPECT_TRUE(bitwise_equal(both.L, M));
  }
}

TEST(MoveByScaled, TakesNoMatricesThatItsKernelDoesNot) {
  const at::Tensor X = at::ones({1, 16, 16}), before = X.clone(), L = at::ones({1, 16, 16}, at::kBFloat16);
  const at::Tensor narrow = at::zeros({1, 16, 4}, at::kBFloat16), factors = at::ones({2}), scales = at::ones({1});
  EXPECT_FALSE(move_by_scaled_({Matrices(X), Matrices(L), Matrices(narrow), Matrices(narrow), factors, scales}));
  const at::Tensor factor = at::zeros({1, 16, 8}, at::kBFloat16), doubles = X.to(at::kDouble);
  EXPECT_FALSE(move_by_scaled_({Matrices(X), Matrices(doubles), Matrices(factor), Matrices(factor), factors, scales}));
  EXPECT_TRUE(at::equal(X, before));
}

TEST(MoveBySigns, LetsANaNReachItsWeight) {
  if (backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CUDA";
  const at::Tensor X = at::zeros({1, 16, 16}), M = at::zeros({1, 16, 16}),
                   factor = at::zeros({1, 16, 8}, at::kBFloat16);
  const at::Tensor L = normal({1, 16, 16}, 1, at::kBFloat16), factors = at::ones({2});
  L[0][3][5] = std::nan("");
  ASSERT_TRUE(move_by_signs_({Matrices(X), Matrices(M), Matrices(L), Matrices(factor), Matrices(factor),
                              Matrices(factor), Matrices(factor), factors}));
  EXPECT_EQ(X.isnan().sum().item<int64_t>(), 1);
  EXPECT_TRUE(std::isnan(X[0][3][5].item<float>()));
  EXPECT_TRUE(at::equal(X.nan_to_num(0), L.sign().nan_to_num(0).to(at::kFloat)));
}

TEST(MoveBySigns, TakesNoMatricesThatItsKernelDoesNot) {
  const at::Tensor X = at::ones({1, 16, 16}), factor = at::zeros({1, 16, 12}, at::kBFloat16), factors = at::ones({2});
  const at::Tensor L = at::ones({1, 16, 16}, at::kBFloat16), before = X.clone();
  EXPECT_FALSE(move_by_signs_({Matrices(X), Matrices(X), Matrices(L), Matrices(factor), Matrices(factor),
                               Matrices(factor), Matrices(factor), factors}));
  EXPECT_TRUE(at::equal(X, before));
}

TEST(NormalizedOutputs, HoldQWithoutTheShareOfRAndACopyOfR) {
  at::Tensor R = normal({3, 90, 10}, 1, at::kFloat);
  R[1].select(1, 4).zero_();
  const at::Tensor scales = at::tensor({0.5F, 0.0F, 2.0F});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor Q = normal({3, 90, 10}, 2, at::kFloat), update = at::full({3, 90, 10}, std::nan(""), dtype);
    const at::Tensor copy = at::empty({3, 90, 10}, at::kBFloat16), kept = Q[1].select(1, 4).clone();
    column_normalize_(Matrices(Q), Matrices(R), {}, {.update = update, .copy_of_R = copy, .scales = scales});
    EXPECT_TRUE(bitwise_equal(Q[1].select(1, 4), kept));
    EXPECT_TRUE(bitwise_equal(copy, R.to(at::kBFloat16)));
    at::Tensor expected = Q.to(at::kDouble);
    expected[1].select(1, 4).zero_();  // of a column of zeros nothing moves
    const at::Tensor plain = at::empty({3, 90, 10}, dtype);
    column_normalize_(Matrices(Q), Matrices(R), {}, {.update = plain});
    EXPECT_LE(relative_error(plain, expected), unit_roundoff(dtype));
    EXPECT_LE(relative_error(update, expected - scales.view({3, 1, 1}) * R.to(at::kDouble)), 2 * unit_roundoff(dtype));
  }
}

}  // namespace

}  // namespace torchdion::linalg
