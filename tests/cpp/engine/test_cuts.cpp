#include "engine/cuts.h"

#include <gtest/gtest.h>

#include "algorithms/options_by_name.h"
#include "comm/mesh_as_threads.h"
#include "sentences.h"
#include "tensors.h"
#include "words.h"

namespace torchdion::engine {

namespace {

using algorithms::Options;
using algorithms::State;
using algorithms::StateShape;

Options options_of(algorithms::NamedValues values) {
  return algorithms::options_of(algorithms::algorithm("dion"), values);
}

std::vector<int64_t> dims_of(const Cuts& cuts) { return {cuts.rows, cuts.cols, cuts.batch}; }

using Dims = std::vector<int64_t>;

TEST(CutsOfAParameter, AreOfTheDimensionsThatItsFormCallsRowsColumnsAndStack) {
  const Options plain = options_of({}), stack = options_of({{"batch_dims", 1}});
  EXPECT_EQ(dims_of(cuts_of_parameter(2, plain)), (Dims{0, 1, -1}));
  EXPECT_EQ(dims_of(cuts_of_parameter(4, plain)), (Dims{0, 1, -1}));
  EXPECT_EQ(dims_of(cuts_of_parameter(1, plain)), (Dims{0, -1, -1}));
  EXPECT_EQ(dims_of(cuts_of_parameter(0, plain)), (Dims{-1, -1, -1}));
  EXPECT_EQ(dims_of(cuts_of_parameter(3, stack)), (Dims{1, 2, 0}));
  EXPECT_EQ(dims_of(cuts_of_parameter(1, stack)), (Dims{-1, -1, 0}));
  const Options transposed = options_of({{"fan_in_first", true}});
  EXPECT_EQ(dims_of(cuts_of_parameter(2, transposed)), (Dims{1, 0, -1}));
  EXPECT_EQ(dims_of(cuts_of_parameter(1, transposed)), (Dims{0, -1, -1})) << "no matrix";
}

TEST(CutsOfAState, AreThoseOfItsParameterAsItsShapeHasThem) {
  const Cuts matrices = cuts_of_matrices(3, options_of({{"batch_dims", 1}}));
  EXPECT_EQ(dims_of(matrices), (Dims{1, 2, 0}));
  const State momentum{.name = "momentum"}, Q{.name = "Q", .shape = StateShape::factor},
      rows{.name = "rows", .shape = StateShape::rows};
  EXPECT_EQ(dims_of(cuts_of_state(momentum, 3, {2, 1, 0}, true)), (Dims{2, 1, 0}));
  EXPECT_EQ(dims_of(cuts_of_state(Q, 3, matrices, /*right=*/true)), (Dims{1, 2, 0})) << "m×r: rows cut its rows";
  EXPECT_EQ(dims_of(cuts_of_state(Q, 3, matrices, /*right=*/false)), (Dims{2, 1, 0})) << "n×r: they cut its columns";
  EXPECT_EQ(dims_of(cuts_of_state(rows, 3, matrices, true)), (Dims{1, -1, 0}));
}

struct CutCase {
  const char* name;
  int64_t dim;
  std::vector<int64_t> sizes;
  Options options;
  const char* sentence;  // after the parameter's name and shape; empty: it may be cut
};

class CheckCut : public testing::TestWithParam<CutCase> {};

TEST_P(CheckCut, TakesWhatAnAlgorithmCanFollowAndNamesTheRest) {
  const CutCase& c = GetParam();
  const Speaking speaking({"torchdion::Dion"});
  const std::string found = sentence_of<c10::ValueError>([&] { check_cut(c.dim, c.sizes, c.options, "parameter 3"); });
  const std::string who = c10::str("torchdion::Dion: parameter 3 of shape ", at::IntArrayRef(c.sizes));
  EXPECT_EQ(found, *c.sentence ? who + c.sentence : "");
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, CheckCut,
    testing::Values(
        CutCase{"Rows", 0, {8, 4}, options_of({}), ""}, CutCase{"Columns", 1, {8, 4}, options_of({}), ""},
        CutCase{"Vector", 0, {8}, options_of({{"blocks", 3}}), ""},
        CutCase{"Stack", 0, {3, 8, 4}, options_of({{"batch_dims", 1}}), ""},
        CutCase{"ColumnsOfAStack", 2, {3, 8, 4}, options_of({{"batch_dims", 1}}), ""},
        CutCase{"Lion", 3, {8, 4, 3, 3}, options_of({{"algorithm", std::string_view("lion")}}), ""},
        CutCase{"Convolution",
                1,
                {8, 4, 3, 3},
                options_of({}),
                " is a convolution (batch_dims(0)), which may be cut on dimension 0, got a cut of dimension 1"},
        CutCase{"StackOfConvolutions",
                2,
                {5, 8, 4, 3},
                options_of({{"batch_dims", 1}}),
                " is a convolution (batch_dims(1)), which may be cut on dimension 0 or 1, got a cut of dimension 2"},
        CutCase{"StackOfStacks",
                1,
                {5, 8, 4, 3},
                options_of({{"batch_dims", 2}}),
                " is a stack (batch_dims(2)), which may be cut on dimension 0 or 2 or 3, got a cut of dimension 1"},
        CutCase{"Blocks",
                0,
                {6, 4},
                options_of({{"blocks", 3}}),
                " has blocks(3) along its rows, which may not be cut, got a cut of dimension 0; with blocks(1) it is "
                "one matrix"},
        CutCase{"ColumnsOfBlocks", 1, {6, 4}, options_of({{"blocks", 3}}), ""}),
    [](const auto& info) { return info.param.name; });

TEST(Pieces, OfAllRanksMakeUpTheWholeAlongEveryCut) {
  comm::Mesh({2, 2, 3}).run([](comm::MeshAxes axes) {
    const Layout layout{.rows = axes.dp, .cols = axes.tp, .batch = axes.fs};
    const Cuts cuts{1, 2, 0};
    const at::Tensor whole = normal({3, 5, 7}, 1), piece = piece_of(whole, cuts, layout);
    EXPECT_EQ(piece.sizes(), at::IntArrayRef(piece_sizes(whole.sizes(), cuts, layout)));
    EXPECT_EQ(piece.sizes(),
              (std::vector<int64_t>{axes.fs.rank == 0 ? 2 : 1, axes.dp.rank == 0 ? 3 : 2, axes.tp.rank == 2 ? 1 : 3}));
    EXPECT_TRUE(piece.is_alias_of(whole));
    EXPECT_TRUE(bitwise_equal(gather(piece.contiguous(), whole.sizes(), cuts, layout), whole));
    const Cuts rows_alone{1, -1, -1};
    EXPECT_EQ(piece_sizes(whole.sizes(), rows_alone, layout), (std::vector<int64_t>{3, axes.dp.rank == 0 ? 3 : 2, 7}));
  });
}

}  // namespace

}  // namespace torchdion::engine
