#include "linalg/normals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "comm/blocking.h"
#include "linalg/normals_with_fma.h"

namespace torchdion::linalg {

namespace {

// Of the 32-bit sources of normals: the ends, powers of two and the bounds of eighths of a turn with their neighbours,
// and others spread evenly.
std::vector<uint32_t> words() {
  std::vector<uint32_t> all;
  for (int power = 0; power < 32; ++power) {
    for (uint32_t k = 0; k < 1000; ++k) {
      const uint32_t around = (uint32_t{1} << power) - 500 + k;
      for (uint32_t eighth = 0; eighth < 8; ++eighth) all.push_back((eighth << 29) + around);
    }
  }
  for (uint32_t i = 0; i < 1'000'000; ++i) all.push_back(i * 0x9E3779B9u);
  return all;
}

// Units in the last place of an FP32 number of that size.
double ulps(float found, double exact) {
  int exponent;
  std::frexp(exact, &exponent);
  return std::abs(found - exact) / std::ldexp(1, exponent - 24);
}

struct ExactDirection {
  double cosine, sine;
};

// Reduced to an eighth of a turn first: the argument of a cosine close to zero must be exact.
ExactDirection exact_direction(uint32_t turn) {
  const double axis = std::round(turn * 0x1p-30);
  const double angle = (turn - axis * 0x1p30) * 0x1p-31 * std::numbers::pi;
  const double cosine = std::cos(angle), sine = std::sin(angle);
  switch (static_cast<int>(axis) % 4) {
    case 0:
      return {cosine, sine};
    case 1:
      return {-sine, cosine};
    case 2:
      return {-cosine, -sine};
    default:
      return {sine, -cosine};
  }
}

float uniform_of(uint32_t word) { return (static_cast<float>(word) + 1) * 0x1p-32f; }

TEST(Normals, LogarithmsAreExactToOneUlp) {
  double largest = 0;
  for (const uint32_t word : words()) {
    const float uniform = uniform_of(word);
    if (uniform < 1) largest = std::max(largest, ulps(logarithm(uniform), std::log(static_cast<double>(uniform))));
  }
  EXPECT_LE(largest, 0.9);
  EXPECT_EQ(logarithm(1), 0);
}

TEST(Normals, LogarithmsNeverFallAsTheirArgumentsGrow) {
  std::vector<uint32_t> sorted = words();
  std::ranges::sort(sorted);
  float before = logarithm(0x1p-32f);
  int falls = 0;
  for (const uint32_t word : sorted) {
    const float now = logarithm(uniform_of(word));
    falls += now < before;
    before = now;
  }
  EXPECT_EQ(falls, 0);
}

TEST(Normals, DirectionsAreExactToTwoUlps) {
  double largest = 0;
  for (const uint32_t turn : words()) {
    const auto [cosine, sine] = direction(turn);
    const ExactDirection exact = exact_direction(turn);
    // On an axis one of the two is zero, in every bit but its sign.
    largest = std::max(largest, exact.cosine == 0 ? std::abs(cosine) / 0x1p-149 : ulps(cosine, exact.cosine));
    largest = std::max(largest, exact.sine == 0 ? std::abs(sine) / 0x1p-149 : ulps(sine, exact.sine));
  }
  EXPECT_LE(largest, 2.1);
}

// In units of FP32's rounding, of 20 000 numbers in each of 64 parts of [0, 1): roundings cancel in their mean, what is
// wrong with a coefficient does not.
template <class Function, class Exact>
double largest_mean_error(const Function& function, const Exact& exact) {
  constexpr int kParts = 64, kNumbers = 20'000;
  double largest = 0;
  for (int part = 0; part < kParts; ++part) {
    double sum = 0;
    for (int i = 0; i < kNumbers; ++i) {
      const double x = (part + (i + 0.5) / kNumbers) / kParts;
      sum += function(x) / exact(x) - 1;
    }
    largest = std::max(largest, std::abs(sum / kNumbers));
  }
  return largest / 0x1p-24;
}

TEST(Normals, ErrorsOfTheirPolynomialsAreFarBelowARounding) {
  const auto turn = [](double x) { return static_cast<uint32_t>(x * 0x1p29); };  // of an eighth of the circle
  EXPECT_LE(largest_mean_error([&](double x) { return direction(turn(x)).sine; },
                               [&](double x) { return exact_direction(turn(x)).sine; }),
            0.25);
  EXPECT_LE(largest_mean_error([&](double x) { return direction(turn(x)).cosine; },
                               [&](double x) { return exact_direction(turn(x)).cosine; }),
            0.25);
  const auto number = [](double x) { return static_cast<float>((1 + x) / 4); };  // of both signs of its f
  EXPECT_LE(largest_mean_error([&](double x) { return logarithm(number(x)); },
                               [&](double x) { return std::log(static_cast<double>(number(x))); }),
            0.05);
}

TEST(Normals, AreThoseOfBoxAndMullerInFP64) {
  double largest = 0;
  for (int64_t row = 0; row < 100'000; ++row) {
    const PhiloxBlock bits = philox({{static_cast<uint32_t>(row), 9, 3, 0}}, 7);
    const Normals found = normals(7, 3, row, 9);
    for (int pair = 0; pair < 2; ++pair) {
      const double radius = std::sqrt(-2 * std::log(static_cast<double>(uniform_of(bits.words[2 * pair]))));
      const auto [cosine, sine] = exact_direction(bits.words[2 * pair + 1]);
      if (radius == 0) continue;
      largest = std::max(largest, ulps(found.values[2 * pair], radius * cosine));
      largest = std::max(largest, ulps(found.values[2 * pair + 1], radius * sine));
    }
  }
  EXPECT_LE(largest, 3.6);
}

TEST(Normals, OfTheLeastUniformAreTheLargest) {
  EXPECT_EQ(std::sqrt(-2 * logarithm(uniform_of(0))), 6.66043711f);
  EXPECT_EQ(std::sqrt(-2 * logarithm(uniform_of(0xffffffff))), 0);
}

std::vector<float> block_of_normals(NormalsOf make, int64_t rows, int64_t blocks) {
  std::vector<float> all;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t block = 0; block < blocks; ++block) {
      const Normals four = make(1, 2, row, block);
      all.insert(all.end(), std::begin(four.values), std::end(four.values));
    }
  }
  return all;
}

int64_t digest_of(const std::vector<float>& numbers) {
  return comm::digest({reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)});
}

// What checkpoints and other machines rely on: a change here is a change of every run. NumPy in FP32 gives the first
// four.
TEST(Normals, HaveTheirBitsOnEveryMachine) {
  const uint32_t expected[] = {0x3f7dbb31, 0xbf6cb6af, 0xbf1e1b9f, 0xbef6d1b2};
  const Normals first = normals(0, 0, 0, 0);
  for (int i = 0; i < kNormalsOfBlock; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(first.values[i]), expected[i]) << i;
  EXPECT_EQ(digest_of(block_of_normals(normals, 500, 500)), -274100138417854437);
}

TEST(Normals, HaveTheSameBitsWhereTheCompilerMayFuseProductsAndSums) {
  EXPECT_EQ(digest_of(block_of_normals(normals_with_fma, 500, 500)), digest_of(block_of_normals(normals, 500, 500)));
}

}  // namespace

}  // namespace torchdion::linalg
