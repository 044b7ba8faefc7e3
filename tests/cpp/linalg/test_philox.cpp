#include "linalg/normals.h"

#include <gtest/gtest.h>

#include <array>

namespace torchdion::linalg {

namespace {

struct Vector {
  PhiloxBlock counter;
  uint32_t key0, key1;
  std::array<uint32_t, 4> expected;
};

class Philox : public testing::TestWithParam<Vector> {};

// Philox-4x32-10 in the known-answer file of Random123 (kat_vectors), the authors' own implementation.
TEST_P(Philox, GivesTheKnownAnswers) {
  const Vector& v = GetParam();
  const PhiloxBlock block = philox(v.counter, uint64_t{v.key1} << 32 | v.key0);
  EXPECT_EQ(std::to_array(block.words), v.expected);
}

INSTANTIATE_TEST_SUITE_P(Random123, Philox,
                         testing::Values(Vector{{{0, 0, 0, 0}}, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                                         Vector{{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
                                                0xffffffff,
                                                0xffffffff,
                                                {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                                         Vector{{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
                                                0xa4093822,
                                                0x299f31d0,
                                                {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));

}  // namespace

}  // namespace torchdion::linalg
