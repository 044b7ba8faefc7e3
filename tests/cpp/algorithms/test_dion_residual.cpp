#include <gtest/gtest.h>

#include <optional>

#include "algorithms/dion_steps.h"

namespace torchdion::algorithms {

namespace {

constexpr const char* kResiduals[] = {"scaled", "sign"};
constexpr const char* kRightFactors[] = {"normalized", "orthonormal"};

TEST(DionResidual, FollowsTheTextbookInFP64) {
  for (const std::string_view residual : kResiduals) {
    for (const std::string_view right : kRightFactors) {
      for (int form = 0; form < 16; ++form) {
        SCOPED_TRACE(testing::Message() << residual << " " << right << " " << form);
        const Orientation orientation = form & 1 ? Orientation::left : Orientation::right;
        const Options options = options_of(kDion, {{"lr", 0.1},
                                                   {"mu", 0.9},
                                                   {"residual", residual},
                                                   {"right_factor", right},
                                                   {"nesterov", (form & 2) != 0},
                                                   {"error_feedback", (form & 4) == 0},
                                                   {"maximize", (form & 8) != 0}});
        const Problem p = problem(3, 12, 20, 5, orientation, at::kDouble);
        const at::Tensor start = p.X.clone();
        Textbook textbook{p.X.clone(), p.M.clone(), p.Q.clone(), options};
        take_steps(p, textbook, orientation, options);
        EXPECT_LE(travel_error(p.X, textbook.X, start), 1e-10);
        EXPECT_LE(relative_error(p.M, textbook.M), 1e-10);
      }
    }
  }
}

// Tensor cores and BF16 read rounded operands, of which what P Rᵀ leaves has its share. Factors of 8 columns move
// weights in one pass on a GPU.
TEST(DionResidual, OfEveryDtypeAndPrecisionEndsNearTheTextbook) {
  struct Case {
    at::ScalarType weights, momentum;
    Precision precision;
    double error;
  };
  for (const Case& c :
       {Case{at::kFloat, at::kFloat, Precision::highest, 2e-5}, Case{at::kFloat, at::kFloat, Precision::high, 3e-3},
        Case{at::kFloat, at::kFloat, Precision::medium, 1.2e-2},
        Case{at::kFloat, at::kBFloat16, Precision::medium, 2e-2},
        Case{at::kBFloat16, at::kFloat, Precision::highest, 0.25}, Case{at::kHalf, at::kHalf, Precision::high, 4e-2}}) {
    for (const std::string_view right : kRightFactors) {
      for (int form = 0; form < 16; ++form) {
        SCOPED_TRACE(testing::Message() << c.weights << " " << c.momentum << " " << static_cast<int>(c.precision) << " "
                                        << right << " " << form);
        const Orientation orientation = form & 4 ? Orientation::left : Orientation::right;
        const Options options = options_of(c.precision, {{"lr", 0.1},
                                                         {"weight_decay", 0.0},
                                                         {"residual", std::string_view("scaled")},
                                                         {"right_factor", right},
                                                         {"nesterov", (form & 1) != 0},
                                                         {"error_feedback", (form & 2) == 0}});
        Problem p = problem(2, 24, 96, form & 8 ? 8 : 6, orientation, c.weights);
        p.M = p.M.to(c.momentum);
        const at::Tensor start = p.X.to(at::kDouble);
        Textbook textbook{start, p.M.to(at::kDouble), p.Q.to(at::kDouble), options};
        take_steps(p, textbook, orientation, options);
        EXPECT_LE(travel_error(p.X, textbook.X, start), c.error);
        EXPECT_LE(relative_error(p.M, textbook.M), c.error);
      }
    }
  }
}

// Signs of what is about zero are those of rounding: few entries. One of 4608 is an error of 0.03, ten of 0.09.
TEST(DionResidual, SignsOfRoundedOperandsAreThoseOfTheTextbookButForFew) {
  struct Case {
    at::ScalarType weights, momentum;
    Precision precision;
    double error;
  };
  for (const Case& c :
       {Case{at::kFloat, at::kFloat, Precision::highest, 5e-5}, Case{at::kFloat, at::kFloat, Precision::high, 0.1},
        Case{at::kFloat, at::kFloat, Precision::medium, 0.25}, Case{at::kFloat, at::kBFloat16, Precision::medium, 0.25},
        Case{at::kBFloat16, at::kFloat, Precision::highest, 0.25},
        Case{at::kHalf, at::kHalf, Precision::highest, 0.1}}) {
    for (int form = 0; form < 8; ++form) {
      SCOPED_TRACE(testing::Message() << c.weights << " " << c.momentum << " " << static_cast<int>(c.precision) << " "
                                      << form);
      const Orientation orientation = form & 4 ? Orientation::left : Orientation::right;
      const Options options = options_of(c.precision, {{"lr", 0.1},
                                                       {"weight_decay", 0.0},
                                                       {"residual", std::string_view("sign")},
                                                       {"nesterov", (form & 1) != 0},
                                                       {"error_feedback", (form & 2) == 0}});
      Problem p = problem(2, 24, 96, 8, orientation, c.weights);
      p.M = p.M.to(c.momentum);
      const at::Tensor start = p.X.to(at::kDouble);
      Textbook textbook{start, p.M.to(at::kDouble), p.Q.to(at::kDouble), options};
      take_step(p, p.gradients[0], orientation, 1, options);
      textbook.step(p.gradients[0], orientation);
      EXPECT_LE(travel_error(p.X, textbook.X, start), c.error);
      EXPECT_LE(relative_error(p.M, textbook.M), c.error);
    }
  }
}

// A momentum that the rank holds leaves rounding, which has no signs; few entries have some where P itself is computed
// from rounded operands.
TEST(DionResidual, OfAMomentumOfFewerDirectionsIsNothing) {
  for (const Precision precision : {Precision::highest, Precision::high, Precision::medium}) {
    for (const std::string_view residual : kResiduals) {
      for (int form = 0; form < 4; ++form) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(precision) << " " << residual << " " << form);
        const Orientation orientation = form & 1 ? Orientation::left : Orientation::right;
        const auto updated = [&](std::optional<std::string_view> rest) {
          const Problem p = problem(2, 64, 96, 8, orientation, at::kFloat);
          const at::Tensor G = normal({2, 64, 5}, 21).matmul(normal({2, 5, 96}, 22)).to(at::kFloat);
          Options options = options_of(precision, {{"lr", 1.0}, {"weight_decay", 0.0}, {"nesterov", (form & 2) != 0}});
          if (rest) options.set("residual", *rest);
          p.X.zero_();
          for (int64_t step = 1; step <= 2; ++step) take_step(p, G, orientation, step, options);
          return p.X;
        };
        const at::Tensor none = updated({}), moved = updated(residual) - none;
        const double length = 2 * std::sqrt(64.0 - 8);  // of signs
        const double share = precision == Precision::highest ? 0.02 : 0.25;
        EXPECT_LE(at::linalg_vector_norm(moved, 2, {1, 2}).max().item<double>(), share * 2 * length);
      }
    }
  }
}

// The update of one step from zero, at a rate of 1.
at::Tensor update_by(const at::Tensor& G, int64_t r, int64_t step, Precision precision, NamedValues values) {
  Options options = options_of(precision, {{"lr", 1.0}, {"weight_decay", 0.0}});
  for (const auto& [name, value] : values) options.set(name, value);
  const Problem p = problem(G.size(0), G.size(1), G.size(2), r, Orientation::right, G.scalar_type());
  p.X.zero_();
  take_step(p, G, Orientation::right, step, options);
  return p.X;
}

// Matrices with these singular values.
at::Tensor with_values(const at::Tensor& values, int64_t n) {
  const int64_t r = values.numel();
  const auto orthonormal = [&](uint64_t seed) { return std::get<0>(at::linalg_qr(normal({1, n, r}, seed))); };
  return (orthonormal(31) * values).matmul(orthonormal(32).mT()).to(at::kFloat);
}

TEST(DionResidual, ThatUnderflowsOrIsLargeIsThatOfAnyScale) {
  const at::Tensor noise = normal({2, 64, 96}, 21).to(at::kFloat);
  const at::Tensor few = normal({2, 64, 5}, 21).matmul(normal({2, 5, 96}, 22)).to(at::kFloat);
  for (const Precision precision : {Precision::highest, Precision::medium}) {
    for (const std::string_view residual : kResiduals) {
      for (const at::Tensor& G : {noise, few}) {
        const NamedValues values = {{"residual", residual}, {"nesterov", true}};
        const at::Tensor expected = update_by(G, 8, 1, precision, values);
        for (const int exponent : {-80, 66}) {
          SCOPED_TRACE(testing::Message() << static_cast<int>(precision) << " " << residual << " " << exponent);
          const at::Tensor update = update_by(G * std::exp2(static_cast<float>(exponent)), 8, 1, precision, values);
          EXPECT_LE(relative_error(update, expected.to(at::kDouble)), 1e-3);
        }
      }
    }
  }
}

// A CPU has no TF32: what of a residual counts as rounding is that of FP32.
TEST(DionResidual, AtHighIsThatOfTheDevice) {
  if (!linalg::backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CPUs";
  const at::Tensor G = with_values(at::cat({at::ones({12}), at::full({52}, 1e-5)}).to(at::kDouble), 64);
  for (const std::string_view residual : kResiduals) {
    for (const std::string_view right : kRightFactors) {
      const NamedValues values = {{"residual", residual}, {"right_factor", right}};
      EXPECT_TRUE(
          at::equal(update_by(G, 16, 1, Precision::high, values), update_by(G, 16, 1, Precision::highest, values)));
    }
  }
}

// P keeps columns that are longer than its own rounding, of which the QR of R may find that they are rounding of R.
TEST(DionRightFactor, ColumnsThatItDropsMoveNothing) {
  const at::Tensor G = with_values(at::cat({at::ones({4}), at::linspace(1e-3, 1.5e-3, 60)}).to(at::kDouble), 64);
  const NamedValues values = {{"right_factor", std::string_view("orthonormal")}};
  for (const Precision precision : {Precision::highest, Precision::high, Precision::medium}) {
    const at::Tensor update = update_by(G, 16, 1, precision, values);
    EXPECT_LE(at::linalg_matrix_norm(update, 2).max().item<double>(), 1.1) << static_cast<int>(precision);
  }
}

TEST(DionRightFactor, ForgetsTheRoundingThatAMomentumWithoutFeedbackForgets) {
  const at::Tensor G = with_values(at::cat({at::ones({4}), at::full({4}, 1e-4)}).to(at::kDouble), 64);
  const NamedValues values = {{"right_factor", std::string_view("orthonormal")}, {"error_feedback", false}};
  for (const int64_t step : {1, 1'000'000}) {
    const at::Tensor update = update_by(G, 8, step, Precision::highest, values);
    EXPECT_EQ(at::linalg_svdvals(update).gt(0.5).sum().item<int64_t>(), 8) << step;
  }
}

TEST(DionResidual, TakesTwoLaunchesMoreForSignsOfTheResidualAndThreeToScaleIt) {
  if (linalg::backend_of(at::kCPU).multiplies_in_place) GTEST_SKIP() << "of the operations on CUDA";
  for (const bool nesterov : {false, true}) {
    const int64_t none = launches_of_step(3, 80, 64, Precision::medium, {{"nesterov", nesterov}});
    const std::string_view sign = "sign", scaled = "scaled";
    EXPECT_EQ(launches_of_step(3, 80, 64, Precision::medium, {{"nesterov", nesterov}, {"residual", sign}}), none + 2);
    EXPECT_EQ(launches_of_step(3, 80, 64, Precision::medium, {{"nesterov", nesterov}, {"residual", scaled}}), none + 3);
  }
}

}  // namespace

}  // namespace torchdion::algorithms
