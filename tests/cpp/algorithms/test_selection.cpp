#include "algorithms/selection.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/line.h"
#include "comm/mesh_as_threads.h"
#include "comm/scheduler.h"
#include "linalg/rows.h"
#include "tensors.h"

namespace torchdion::algorithms {

namespace {

using linalg::Matrices;

comm::Task<> choose(Matrices B, Layout layout, int64_t m, int64_t k, at::Tensor* places) {
  *places = co_await largest_rows(B, layout, m, k, comm::Order::any);
}

at::Tensor chosen(const at::Tensor& B, int64_t k, const Layout& layout = {}, int64_t m = -1) {
  at::Tensor places;
  comm::run(choose(Matrices(B), layout, m < 0 ? B.size(1) : m, k, &places));
  return places;
}

TEST(LargestRows, AreThoseOfTheLargestL1NormsInAscendingOrder) {
  const at::Tensor B = normal({4, 30, 50}, 1), order = std::get<1>(B.abs().sum(2).sort(1, /*descending=*/true));
  for (const int64_t k : {1, 7, 30}) {
    EXPECT_TRUE(at::equal(chosen(B, k), std::get<0>(order.narrow(1, 0, k).sort(1))));
    EXPECT_TRUE(at::equal(chosen(column_major(B), k), chosen(B, k)));
  }
}

// Of rows with the same entries in another order, whose sums round differently, the first are chosen.
TEST(LargestRows, AreTheFirstOfEqualOnesWhateverTheOrderOfSummation) {
  const at::Tensor row = normal({1001}, 1);
  std::vector<at::Tensor> rows;
  int64_t differing = 0;
  for (uint64_t i = 0; i < 24; ++i) {
    const at::Tensor order = std::get<1>(normal({1001}, 2 + i).sort(0));
    rows.push_back(row.index_select(0, order));
  }
  const at::Tensor B = at::stack(rows).unsqueeze(0), sums = linalg::row_sums(Matrices(B), linalg::RowSum::magnitudes);
  for (int64_t i = 1; i < 24; ++i) differing += sums[0][i].item<double>() != sums[0][0].item<double>();
  EXPECT_GE(differing, 1);
  EXPECT_TRUE(at::equal(chosen(B, 6), at::arange(6).unsqueeze(0)));
  EXPECT_TRUE(at::equal(chosen(B.flip(2), 6), at::arange(6).unsqueeze(0)));
}

TEST(LargestRows, HoldWhatIsNoNumberAndAreTheFirstOfZeros) {
  at::Tensor B = normal({1, 9, 5}, 1);
  B[0][4][1] = std::nan("");
  B[0][7][0] = -std::numeric_limits<double>::infinity();
  EXPECT_TRUE(at::equal(chosen(B, 2), at::tensor({4, 7}, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(at::equal(chosen(at::zeros({2, 9, 5}), 3), at::arange(3).expand({2, 3})));
  const at::Tensor scale = at::ones({9, 1}, at::kDouble);
  scale[5] = scale[6] = 40;
  for (const double size : {1e-290, 1e303}) {
    const at::Tensor rows = normal({1, 9, 5}, 1).sign() * scale * size;
    EXPECT_TRUE(at::equal(chosen(rows, 2), at::arange(5, 7).unsqueeze(0))) << size;
  }
}

TEST(ChosenRows, AreAtLeastOneAndTheFractionRoundedUp) {
  EXPECT_EQ(chosen_rows(0.25, 768), 192);
  EXPECT_EQ(chosen_rows(0.25, 5), 2);
  EXPECT_EQ(chosen_rows(0.001, 5), 1);
  EXPECT_EQ(chosen_rows(1, 7), 7);
  EXPECT_EQ(chosen_rows(0.1, 30), 3);
  EXPECT_EQ(chosen_rows(0.07, 100), 8) << "as 0.07 * 100 is more than 7 in FP64, also to the dion package";
}

struct Cut {
  std::string name;
  comm::MeshShape mesh;
  int64_t m, n, k;
  std::vector<int> chunks;  // of the rows' axis
};

class SelectionOnAMesh : public testing::TestWithParam<Cut> {};

TEST_P(SelectionOnAMesh, IsThatOfOneProcessAndItsRowsTravelInSlots) {
  const Cut& cut = GetParam();
  comm::Mesh mesh(cut.mesh);
  const at::Tensor B = normal({3, cut.m, cut.n}, 1), expected = chosen(B, cut.k);
  // All ranks' slots, as they lie side by side, of rows' axes.
  std::vector<at::Tensor> slots(cut.mesh.fs);
  int64_t here = 0;
  mesh.run([&](comm::MeshAxes axes) {
    Layout layout{.rows = axes.fs, .cols = axes.tp};
    if (!cut.chunks.empty() && !layout.rows.absent()) layout.rows = Axis(axes.fs.line->group, {.chunks = cut.chunks});
    const Piece rows = layout.rows.piece(cut.m), cols = layout.cols.piece(cut.n);
    const at::Tensor piece = B.narrow(1, rows.begin, rows.size).narrow(2, cols.begin, cols.size).contiguous();
    const at::Tensor places = chosen(piece, cut.k, layout, cut.m);
    EXPECT_TRUE(at::equal(places, expected));

    const Slots of_matrices({.count = 3, .m = cut.m, .n = cut.n, .rows = rows.size, .cols = cols.size}, layout, cut.k);
    EXPECT_EQ(of_matrices.here, std::min(cut.k, layout.rows.largest_piece(cut.m)));
    EXPECT_EQ(layout.rows.piece(of_matrices.shape.m).size, of_matrices.here) << "as many for each rank";
    const at::Tensor of_slots = rows_of_slots(places, rows, of_matrices.here), of_rows = slots_of_rows(places, rows);
    for (int64_t i = 0; i < 3; ++i) {  // the inverse of each other
      for (int64_t row = 0; row < rows.size; ++row) {
        const int64_t slot = of_rows[i][row].item<int64_t>();
        const bool is_chosen = places[i].eq(rows.begin + row).any().item<bool>();
        EXPECT_EQ(slot >= 0, is_chosen);
        if (slot >= 0) {
          EXPECT_EQ(of_slots[i][slot].item<int64_t>(), row);
        }
      }
      EXPECT_EQ(of_slots[i].ge(0).sum().item<int64_t>(), of_rows[i].ge(0).sum().item<int64_t>());
    }
    if (layout.cols.rank > 0) return;
    const at::Tensor taken = at::empty({3, of_matrices.here, cut.n}, at::kDouble);
    linalg::take_rows_(Matrices(taken), Matrices(B.narrow(1, rows.begin, rows.size).contiguous()), of_slots);
    slots[layout.rows.rank] = taken;
    here = of_matrices.here;
    if (layout.rows.absent() || layout.rows.rank > 0) return;
    const at::Tensor at_slots = slots_of_chosen(places, cut.m, layout.rows, of_matrices.here);
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t t = 0; t < cut.k; ++t) {
        const int64_t all = at_slots[i][t].item<int64_t>(), rank = all / of_matrices.here;
        const Piece piece_of_rank = layout.rows.piece(cut.m, static_cast<int>(rank));
        const int64_t row = expected[i][t].item<int64_t>();
        EXPECT_TRUE(row >= piece_of_rank.begin && row < piece_of_rank.end());
      }
    }
    const at::Tensor back = chosen_of_slots(at_slots, of_matrices.shape.m);
    EXPECT_EQ(back.ge(0).sum().item<int64_t>(), 3 * cut.k);
    EXPECT_TRUE(at::equal(back.gather(1, at_slots.to(at::kLong)), at::arange(cut.k).expand({3, cut.k}).to(at::kInt)));
  });
  if (cut.mesh.fs == 1) return;
  const at::Tensor whole = at::cat(slots, 1), at_slots = [&] {
    at::Tensor found;
    mesh.run([&](comm::MeshAxes axes) {
      if (axes.rank > 0) return;
      const Axis rows = cut.chunks.empty() ? axes.fs : Axis(axes.fs.line->group, {.chunks = cut.chunks});
      found = slots_of_chosen(expected, cut.m, rows, here);
    });
    return found;
  }();
  at::Tensor taken = at::empty({3, cut.k, cut.n}, at::kDouble);
  linalg::take_rows_(Matrices(taken), Matrices(whole), at_slots);
  const at::Tensor index = expected.unsqueeze(2).expand({3, cut.k, cut.n});
  EXPECT_TRUE(at::equal(taken, B.gather(1, index)));
}

INSTANTIATE_TEST_SUITE_P(Meshes, SelectionOnAMesh,
                         testing::Values(Cut{"whole", {1, 1, 1}, 20, 12, 5, {}}, Cut{"rows", {1, 4, 1}, 20, 12, 7, {}},
                                         Cut{"columns", {1, 1, 3}, 20, 14, 7, {}},
                                         Cut{"both", {1, 3, 2}, 22, 13, 9, {}},
                                         Cut{"emptypieces", {1, 5, 1}, 3, 4, 2, {}}, Cut{"all", {1, 3, 1}, 7, 4, 7, {}},
                                         Cut{"chunksofchunks", {1, 6, 1}, 23, 5, 6, {2, 3}},
                                         Cut{"uneven", {1, 4, 1}, 9, 5, 8, {2, 2}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace

}  // namespace torchdion::algorithms
