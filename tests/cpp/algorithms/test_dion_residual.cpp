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
  for (const Precision precision : {Precision::highest, Precision::high, Precision::medium}) {
    for (int form = 0; form < 8; ++form) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(precision) << " " << form);
      const Orientation orientation = form & 4 ? Orientation::left : Orientation::right;
      const Options options = options_of(precision, {{"lr", 0.1},
                                                     {"weight_decay", 0.0},
                                                     {"residual", std::string_view("sign")},
                                                     {"nesterov", (form & 1) != 0},
                                                     {"error_feedback", (form & 2) == 0}});
      const Problem p = problem(2, 24, 96, 8, orientation, at::kFloat);
      const at::Tensor start = p.X.to(at::kDouble);
      Textbook textbook{start, p.M.to(at::kDouble), p.Q.to(at::kDouble), options};
      take_step(p, p.gradients[0], orientation, 1, options);
      textbook.step(p.gradients[0], orientation);
      const double bound = precision == Precision::highest ? 5e-5 : precision == Precision::high ? 0.1 : 0.25;
      EXPECT_LE(travel_error(p.X, textbook.X, start), bound);
      EXPECT_LE(relative_error(p.M, textbook.M), bound);
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
