#include "algorithms/whole_matrices.h"

#include <ATen/ops/empty_like.h>
#include <gtest/gtest.h>

#include "comm/mesh_as_threads.h"
#include "comm/scheduler.h"
#include "engine/plan.h"
#include "tensors.h"

namespace torchdion::algorithms {

namespace {

constexpr int64_t kCount = 5, kRows = 7, kCols = 10;

struct There {
  at::Tensor own, back;
};

// Where owners leave what they make of their matrices.
enum class Result { elsewhere, in_place, by_columns };

comm::Task<> there_and_back(at::Tensor pieces, Layout layout, BatchShape shape, Result result, There* there) {
  const at::Tensor own = co_await gather_to_owners(pieces, layout, shape);
  there->own = own.clone();  // it may lie in the pieces
  at::Tensor doubled = own * 2;
  if (result == Result::in_place) doubled = at::Tensor(own).mul_(2);
  if (result == Result::by_columns) doubled = column_major(doubled);
  there->back = co_await scatter_from_owners(pieces, doubled, layout, shape);
  EXPECT_EQ(there->back.const_data_ptr(), layout.is_local() ? doubled.const_data_ptr() : pieces.const_data_ptr());
}

// Matrix i belongs to the rank of this place, in the order of axes_of_owners().
BatchShape shape_on(const Layout& layout, const std::vector<int64_t>& owners) {
  engine::Alike alike;
  alike.owned.axes = axes_of_owners(layout);
  alike.owners = owners;
  const int64_t rows = layout.rows.piece(kRows).size, cols = layout.cols.piece(kCols).size;
  return {.count = kCount,
          .numel = kCount * rows * cols,
          .m = kRows,
          .n = kCols,
          .rows = rows,
          .cols = cols,
          .owners = engine::owners_of(alike, 0, kCount),
          .computing = at::kDouble};
}

struct Case {
  std::string name;
  comm::MeshShape mesh;
  Layout (*layout)(const comm::MeshAxes&);
};

Layout replicated(const comm::MeshAxes& axes) { return {.rows = axes.fs, .cols = axes.tp, .replicas = axes.dp}; }
Layout copied(const comm::MeshAxes& axes) { return {.rows = axes.fs, .cols = axes.tp, .copies = axes.dp}; }
Layout both(const comm::MeshAxes& axes) { return {.rows = axes.tp, .replicas = axes.dp, .copies = axes.fs}; }

class Owners : public testing::TestWithParam<Case> {};

TEST_P(Owners, HaveSumsOfWholeMatricesAndGivePiecesBack) {
  comm::Mesh mesh(GetParam().mesh);
  const int64_t ranks = mesh.shape.size();
  std::vector<int64_t> owners;  // each batch in the order of its owners
  for (int64_t i = 0; i < kCount; ++i) owners.push_back(i * (ranks - 1) / (kCount - 1));
  mesh.run([&](comm::MeshAxes axes) {
    const Layout layout = GetParam().layout(axes);
    at::Tensor sum = at::zeros({kCount, kRows, kCols}, at::kDouble);
    for (int replica = 0; replica < layout.replicas.size; ++replica) sum += normal({kCount, kRows, kCols}, 1 + replica);
    const BatchShape shape = shape_on(layout, owners);
    const Piece rows = layout.rows.piece(kRows), cols = layout.cols.piece(kCols);
    const auto piece = [&](const at::Tensor& whole) {
      return whole.narrow(1, rows.begin, rows.size).narrow(2, cols.begin, cols.size).contiguous();
    };
    There there;
    const at::Tensor given = piece(normal({kCount, kRows, kCols}, 1 + layout.replicas.rank));
    comm::run(there_and_back(given.clone(), layout, shape, Result::elsewhere, &there));
    int64_t place = 0;
    for (const Axis& axis : axes_of_owners(layout)) place = place * axis.size + axis.rank;
    std::vector<at::Tensor> expected;
    for (int64_t i = 0; i < kCount; ++i) {
      if (owners[i] == place) expected.push_back(sum[i]);
    }
    ASSERT_EQ(there.own.size(0), static_cast<int64_t>(expected.size()));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(relative_error(there.own[static_cast<int64_t>(i)], expected[i]), 1e-15);
    }
    EXPECT_TRUE(at::allclose(there.back, piece(sum * 2), 1e-15, 0));

    Cost cost;
    add_way_to_owners(cost, shape, layout, 8);
    add_way_from_owners(cost, shape, layout, 8);
    const std::pair<const Axis*, const AxisCost*> sides[] = {{&layout.replicas, &cost.replicas},
                                                             {&layout.copies, &cost.copies},
                                                             {&layout.rows, &cost.rows},
                                                             {&layout.cols, &cost.cols}};
    for (const auto& [axis, of_axis] : sides) {
      if (axis->absent()) continue;
      EXPECT_EQ(axis->traffic().elements(), of_axis->elements) << axis->name();
      EXPECT_EQ(axis->traffic().bytes(), of_axis->bytes) << axis->name();
      EXPECT_LE(of_axis->elements, kCount * kRows * kCols);  // mn, as Table 2 has it
    }
    EXPECT_EQ(layout.copies.traffic().bytes(), layout.copies.traffic().all_gather.bytes)
        << "the way there costs nothing";
    int dim = 0;
    for (const Axis* axis : {&axes.dp, &axes.fs, &axes.tp}) {
      EXPECT_EQ(axis->traffic().bytes(), mesh.sent_bytes(axes.rank, dim++)) << axis->name();
    }
    for (const Result result : {Result::in_place, Result::by_columns}) {
      There again;
      comm::run(there_and_back(given.clone(), layout, shape, result, &again));
      EXPECT_TRUE(at::equal(again.back, there.back));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, Owners,
    testing::Values(Case{"replicas", {1, 1, 1}, replicated}, Case{"replicas", {3, 1, 1}, replicated},
                    Case{"replicas", {1, 3, 1}, replicated}, Case{"replicas", {1, 1, 4}, replicated},
                    Case{"replicas", {2, 2, 2}, replicated}, Case{"replicas", {1, 9, 1}, replicated},
                    Case{"replicas", {2, 3, 1}, replicated}, Case{"copies", {3, 1, 1}, copied},
                    Case{"copies", {9, 1, 1}, copied}, Case{"copies", {2, 2, 2}, copied}, Case{"both", {2, 2, 1}, both},
                    Case{"both", {2, 3, 2}, both}),
    [](const auto& info) {
      const comm::MeshShape& mesh = info.param.mesh;
      return c10::str(info.param.name, "_dp", mesh.dp, "fs", mesh.fs, "tp", mesh.tp);
    });

TEST(PiecesOfMatrices, TravelAsTheyAreAndAreSummedWithOneRounding) {
  comm::Mesh mesh({3, 2, 1});
  mesh.run([&](comm::MeshAxes axes) {
    const Layout layout{.rows = axes.fs, .replicas = axes.dp};
    const BatchShape shape = shape_on(layout, {0, 1, 2, 2, 4});
    const Piece rows = layout.rows.piece(kRows);
    const auto given = [&](int replica) {
      return normal({kCount, kRows, kCols}, 1 + replica, at::kBFloat16).narrow(1, rows.begin, rows.size).contiguous();
    };
    There there;
    comm::run(there_and_back(given(axes.dp.rank), layout, shape, Result::elsewhere, &there));
    EXPECT_EQ(there.own.scalar_type(), at::kBFloat16);
    const at::Tensor sum = given(0).to(at::kFloat) + given(1).to(at::kFloat) + given(2).to(at::kFloat);
    EXPECT_TRUE(bitwise_equal(there.back, sum.to(at::kBFloat16) * 2));
    Cost cost;
    add_way_to_owners(cost, shape, layout, 2);
    add_way_from_owners(cost, shape, layout, 2);
    EXPECT_EQ(axes.fs.traffic().bytes(), cost.rows.bytes);
    EXPECT_EQ(axes.dp.traffic().bytes(), cost.replicas.bytes);
  });
}

}  // namespace

}  // namespace torchdion::algorithms
