// The coefficients of linalg/newton_schulz.h's polar_express().
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "linalg/newton_schulz.h"

namespace torchdion::linalg {

namespace {

// Singular values from here to 1 are brought to 1.
constexpr double kSmallest = 1e-3;

// Each polynomial treats singular values below this part of the largest as if they were as large: the best one for all
// of them would amplify too little.
constexpr double kCushion = 0.02;

using Equations = std::array<std::array<double, 5>, 4>;  // and right-hand sides

// The unknowns, by elimination with row pivots.
std::array<double, 4> solve(Equations equations) {
  for (int k = 0; k < 4; ++k) {
    const auto larger = [k](const auto& one, const auto& other) { return std::abs(one[k]) < std::abs(other[k]); };
    std::swap(equations[k], *std::max_element(equations.begin() + k, equations.end(), larger));
    for (int i = k + 1; i < 4; ++i) {
      const double factor = equations[i][k] / equations[k][k];
      for (int j = k; j < 5; ++j) equations[i][j] -= factor * equations[k][j];
    }
  }
  std::array<double, 4> unknowns{};
  for (int k = 3; k >= 0; --k) {
    double rest = equations[k][4];
    for (int j = k + 1; j < 4; ++j) rest -= equations[k][j] * unknowns[j];
    unknowns[k] = rest / equations[k][k];
  }
  return unknowns;
}

// The p for which max |1 − p(x)| over [low, high] is least, by Remez' exchange: the error is as large, with signs in
// turn, at both ends and at both extrema between.
Quintic closest_to_one(double low, double high) {
  if (low / high >= 1 - 5e-6) return {15 / (8 * high), -10 / (8 * std::pow(high, 3)), 3 / (8 * std::pow(high, 5))};
  constexpr int kMostExchanges = 100;
  std::array<double, 4> points{low, (3 * low + high) / 4, (low + 3 * high) / 4, high};
  Quintic p{};
  double error = 0;
  for (int exchange = 0; exchange < kMostExchanges; ++exchange) {
    Equations equations{};
    for (int i = 0; i < 4; ++i) {
      const double x = points[i];
      equations[i] = {x, std::pow(x, 3), std::pow(x, 5), i % 2 == 0 ? 1. : -1., 1};
    }
    const auto [a, b, c, new_error] = solve(equations);
    p = {a, b, c};
    if (exchange > 0 && std::abs(new_error - error) <= 1e-15) break;
    error = new_error;
    const double root = std::sqrt(9 * b * b - 20 * a * c);  // of the derivative, a + 3 b x² + 5 c x⁴
    points[1] = std::sqrt((-3 * b - root) / (10 * c));
    points[2] = std::sqrt((-3 * b + root) / (10 * c));
  }
  return p;
}

// p with x → factor p(x), or x → p(factor x).
Quintic scaled(const Quintic& p, double factor) { return {p.a * factor, p.b * factor, p.c * factor}; }
Quintic stretched(const Quintic& p, double factor) {
  return {p.a * factor, p.b * std::pow(factor, 3), p.c * std::pow(factor, 5)};
}

}  // namespace

std::vector<Quintic> polar_express(int64_t steps, double slack) {
  std::vector<Quintic> polynomials;
  double low = kSmallest, high = 1;
  for (int64_t step = 0; step < steps; ++step) {
    const double cushion = kCushion * high;
    Quintic p = closest_to_one(std::max(low, cushion), high);
    if (cushion > low) p = scaled(p, 2 / (p(low) + p(high)));  // in the middle between what it makes of all
    if (step + 1 < steps) p = stretched(p, 1 / slack);
    polynomials.push_back(p);
    low = p(low);
    high = 2 - low;
  }
  return polynomials;
}

}  // namespace torchdion::linalg
