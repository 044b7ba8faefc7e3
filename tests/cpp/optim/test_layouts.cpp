// A mesh of ranks through the C++ front: the law, what it counts, and what a layout may be.
#include <gtest/gtest.h>

#include "optim/model_on_mesh.h"

namespace torchdion {

namespace {

using comm::axis_of;
using comm::Meeting;
using comm::Mesh;
using comm::MeshAxes;
using comm::MeshShape;

constexpr int kSteps = 4;

class DionOnMesh : public testing::TestWithParam<MeshShape> {};

TEST_P(DionOnMesh, TakesTheStepsOfOneProcess) {
  const MeshShape shape = GetParam();
  const Model model;
  ModelOnMesh expected(model, {}, shape.dp, kCompressed);
  for (int step = 0; step < kSteps; ++step) expected.step(step);
  Mesh(shape).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, shape.dp, kCompressed);
    for (int step = 0; step < kSteps; ++step) training.step(step);
    training.optimizer.synchronize_for_checkpoint();
    for (std::size_t i = 0; i < training.layouts.size(); ++i) {
      const at::Tensor param = training.local.params()[i], whole = expected.local.params()[i];
      const auto piece = [&](const at::Tensor& tensor) { return piece_of(tensor, training.layouts[i], kBatchDims[i]); };
      if (param.numel() == 0) continue;
      EXPECT_LE(travel_error(param.detach(), piece(whole), piece(model.params()[i])), 1e-11) << "parameter " << i;
      const ParamState &state = training.optimizer.state_of(param), &of_whole = expected.optimizer.state_of(whole);
      EXPECT_LE(relative_error(state.momentum(), piece(of_whole.momentum())), 1e-11) << "parameter " << i;
      EXPECT_EQ(state.step().item<double>(), kSteps);
    }
    EXPECT_TRUE(training.optimizer.state_of(training.local.weight).Q().sizes() ==
                piece_of(expected.optimizer.state_of(expected.local.weight).Q(), training.layouts[0], 0).sizes());
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, DionOnMesh, testing::Values(MeshShape{2, 2, 2}, MeshShape{1, 3, 2}),
                         [](const auto& info) {
                           return c10::str("dp", info.param.dp, "_fs", info.param.fs, "_tp", info.param.tp);
                         });

TEST(DionLayouts, MissingGradientsCountAsZeroWhereReplicasAverage) {
  const Model model;
  ModelOnMesh expected(model, {}, 1, kCompressed);
  for (at::Tensor& param : expected.local.params()) param.mutable_grad() = normal(param.sizes(), 9) / 2;
  expected.optimizer.step();
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    for (at::Tensor& param : training.local.params()) {
      if (axes.dp.rank == 0) param.mutable_grad() = normal(param.sizes(), 9);
    }
    training.optimizer.step();
    EXPECT_LE(travel_error(training.local.weight.detach(), expected.local.weight.detach(), model.weight.detach()),
              1e-12);
    EXPECT_FALSE(training.local.weight.grad().defined() && axes.dp.rank == 1);
  });
}

TEST(DionLayouts, FrozenParametersOfReplicasAreLeftAlone) {
  const Model model;
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    ModelOnMesh training(model, axes, 2, kCompressed);
    training.local.weight.requires_grad_(false);
    training.local.square.mutable_grad() = training.gradient(1, 0, axes.dp.rank);
    training.optimizer.step();
    EXPECT_TRUE(bitwise_equal(training.local.weight.detach(), model.weight.detach()));
    EXPECT_FALSE(bitwise_equal(training.local.square.detach(), model.square.detach()));
  });
}

TEST(DionLayouts, StatsCountWhatEachAxisCarries) {
  Mesh({2, 2, 1}).run([&](MeshAxes axes) {
    const at::Tensor weight = Model::leaf({6, 20}, 1), whole = Model::leaf({7}, 2);
    Dion optimizer(std::vector<at::Tensor>{weight, whole}, DionOptions(0.1).rank_fraction(0.25));
    Layout layout;
    layout.rows = axes.fs;
    layout.replicas = axes.dp;
    layout.sizes = {12, 20};
    optimizer.set_layout(weight, layout);
    EXPECT_EQ(optimizer.stats().traffic.at("fs").elements(), 0);
    for (int step = 0; step < 2; ++step) {
      for (at::Tensor param : {weight, whole}) param.mutable_grad() = normal(param.sizes(), step);
      optimizer.step();
    }
    const std::map<std::string, AxisTraffic> traffic = optimizer.stats().traffic;
    ASSERT_EQ(traffic.size(), 2u);
    EXPECT_EQ(traffic.at("fs").elements(), 2 * (20 + 1) * 3);  // P and the column norms
    EXPECT_EQ(optimizer.stats().expected_traffic.at("fs"), (20 + 1) * 3);
    EXPECT_EQ(optimizer.stats().expected_traffic.at("dp"), traffic.at("dp").elements() / 2);
    // R's own rows, and P where this rank orthonormalizes it.
    EXPECT_EQ(traffic.at("dp").elements(), 2 * (6 + (axes.fs.rank == 0 ? 20 : 0)) * 3);
  });
}

// Five of them, so that one has fewer than the others.
std::vector<at::Tensor> matrices() {
  std::vector<at::Tensor> all;
  for (uint64_t i = 0; i < 5; ++i) all.push_back(Model::leaf({12 + 4 * static_cast<int64_t>(i % 2), 9}, 1 + i));
  return all;
}

void give_gradients(const std::vector<at::Tensor>& params, uint64_t seed) {
  for (at::Tensor param : params) param.mutable_grad() = normal(param.sizes(), 100 + ++seed);
}

TEST(CopiesUnderMuon, ShareTheStepsOfOneProcessAndAreSavedAsTheyAre) {
  const std::vector<at::Tensor> expected = matrices();
  Muon alone(expected, MuonOptions(0.1));
  for (int step = 0; step < kSteps; ++step) give_gradients(expected, 10 * step), alone.step();
  Mesh({3, 1, 1}).run([&](MeshAxes axes) {
    const std::vector<at::Tensor> params = matrices(), start = matrices();
    Muon optimizer(params, MuonOptions(0.1));
    for (const at::Tensor& param : params) optimizer.set_layout(param, {.copies = axes.dp});
    for (int step = 0; step < kSteps; ++step) give_gradients(params, 10 * step), optimizer.step();
    int64_t numel = 0;
    for (std::size_t i = 0; i < params.size(); ++i) {
      EXPECT_LE(travel_error(params[i].detach(), expected[i].detach(), start[i].detach()), 1e-12);
      numel += params[i].numel();
    }
    EXPECT_EQ(optimizer.stats().expected_traffic.at("dp"), numel);
    EXPECT_EQ(optimizer.stats().traffic.at("dp").elements(), kSteps * numel);
    EXPECT_NO_THROW(optimizer.check_replicas(axes.dp)) << "equal in every bit";
    EXPECT_NO_THROW(optimizer.state_dict()) << "momenta are not each copy's own";
  });
}

TEST(CopiesUnderMuon, OfWhichOneLacksAGradientAreToldSo) {
  Mesh({2, 1, 1}).run([&](MeshAxes axes) {
    const std::vector<at::Tensor> params = matrices();
    Muon optimizer(params, MuonOptions(0.1));
    for (const at::Tensor& param : params) optimizer.set_layout(param, {.copies = axes.dp});
    give_gradients(params, 0);
    if (axes.dp.rank == 1) at::Tensor(params[3]).mutable_grad().reset();
    EXPECT_NE(message_of([&] { optimizer.step(); })
                  .find("the axis 'dp' must agree on the dtype of the gradient of "
                        "parameter 3"),
              std::string::npos);
  });
}

TEST(DionLayouts, OfCopiesTellItNoMoreThanThatThereAreSome) {
  Mesh({2, 2, 1}).run([&](MeshAxes axes) {
    const at::Tensor one = Model::leaf({6, 20}, 1), other = Model::leaf({6, 20}, 1);
    Dion known(std::vector<at::Tensor>{one}, kCompressed), unknown(std::vector<at::Tensor>{other}, kCompressed);
    known.set_layout(one, {.rows = axes.fs, .copies = axes.dp, .sizes = {12, 20}});
    unknown.set_layout(other, {.rows = axes.fs, .sizes = {12, 20}, .has_averaged_copies = true});
    for (int step = 0; step < kSteps; ++step) {
      for (at::Tensor param : {one, other}) param.mutable_grad() = normal({6, 20}, 10 * step + axes.fs.rank);
      known.step(), unknown.step();
    }
    EXPECT_TRUE(bitwise_equal(one.detach(), other.detach()));
    EXPECT_EQ(known.stats().traffic.at("dp").elements(), 0);
  });
}

TEST(DionLayouts, TrainingGoesOnFromTheStateDictOfEveryRank) {
  const Model model;
  Mesh({2, 2, 2}).run([&](MeshAxes axes) {
    ModelOnMesh first(model, axes, 2, kCompressed), second(model, axes, 2, kCompressed);
    for (int step = 0; step < 2; ++step) first.step(step);
    first.optimizer.synchronize_for_checkpoint();
    second.optimizer.load_state_dict(first.optimizer.state_dict());
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 5; ++i) second.local.params()[i].copy_(first.local.params()[i]);
    for (int step = 2; step < kSteps; ++step) first.step(step), second.step(step);
    expect_bitwise_equal(first.local.params(), second.local.params());
  });
}

TEST(DionLayouts, PiecesOfAnotherLayoutAreNotLoaded) {
  Mesh({1, 2, 1}).run([&](MeshAxes axes) {
    const auto optimizer_of = [&](const at::Tensor& weight, std::vector<int64_t> sizes) {
      auto optimizer = std::make_unique<Dion>(std::vector<at::Tensor>{weight}, DionOptions(0.1).rank_fraction(0.5));
      Layout layout;
      layout.cols = axes.fs;
      layout.sizes = std::move(sizes);
      optimizer->set_layout(weight, layout);
      return optimizer;
    };
    const at::Tensor weight = Model::leaf({8, 4}, 1);
    const auto optimizer = optimizer_of(weight, {8, 8});
    at::Tensor(weight).mutable_grad() = normal({8, 4}, 2);
    optimizer->step();
    c10::IValue saved = optimizer->state_dict();
    EXPECT_EQ(optimizer->state_of(weight).Q().sizes(), (std::vector<int64_t>{8, 2}));  // of 8×4
    const auto whole = std::make_unique<Dion>(std::vector<at::Tensor>{weight});
    whole->load_state_dict(saved);  // 8×4 may have rank 2
    auto entry = saved.toGenericDict().at("state").toGenericDict().at(int64_t{0}).toGenericDict();
    entry.insert_or_assign("Q", at::ones({8, 3}, at::kDouble));
    EXPECT_EQ(message_of([&] {
                optimizer_of(weight, {8, 8})->load_state_dict(saved);
              }),
              "torchdion::Dion: the state Q of parameter 0 (parameter group 0) must be this rank's piece of shape "
              "[8, 2] as its layout says, got [8, 3]");
    // A piece that no factor of these matrices has: with all of its columns, of which there are too many.
    const auto left = [&] {
      auto optimizer =
          std::make_unique<Dion>(std::vector<at::Tensor>{weight}, DionOptions(0.1).orientation(Orientation::left));
      optimizer->set_layout(weight, {.cols = axes.fs, .sizes = {8, 8}});
      return optimizer;
    };
    const auto wide = left();
    wide->step();
    c10::IValue too_wide = wide->state_dict();
    entry = too_wide.toGenericDict().at("state").toGenericDict().at(int64_t{0}).toGenericDict();
    entry.insert_or_assign("Q", at::ones({4, 9}, at::kDouble));
    EXPECT_EQ(message_of([&] { left()->load_state_dict(too_wide); }),
              "torchdion::Dion: the state Q of parameter 0 (parameter group 0) must have the shape [8, r] with 1 ≤ r ≤ "
              "8, got [8, 9]");
  });
}

struct LayoutCase {
  std::string name;
  std::vector<int64_t> piece;
  DionOptions options;
  std::function<void(Layout&, const Axis&)> cut;
  std::vector<int64_t> sizes;
  std::string sentence;  // after the parameter's name
};

class RefusedLayout : public testing::TestWithParam<LayoutCase> {};

void rows(Layout& layout, const Axis& axis) { layout.rows = axis; }
void cols(Layout& layout, const Axis& axis) { layout.cols = axis; }
void batch(Layout& layout, const Axis& axis) { layout.batch = axis; }

TEST_P(RefusedLayout, IsNamedWithItsParameter) {
  const LayoutCase& c = GetParam();
  Meeting meeting(2);
  const at::Tensor param = Model::leaf(c.piece, 1);
  Dion optimizer(std::vector<at::Tensor>{param}, DionOptions(c.options).batch_dims(c.options.batch_dims().value_or(0)));
  Layout layout;
  c.cut(layout, axis_of(&meeting, 0, {.name = "fs"}));
  layout.sizes = c.sizes;
  const std::string sentence = message_of([&] { optimizer.set_layout(param, layout); });
  EXPECT_EQ(sentence, "torchdion::Dion: " + c.sentence);
  EXPECT_TRUE(optimizer.stats().traffic.empty());
}

const std::string kHouseholder =
    "orthonormalize must be one of Orthonormalize::automatic, Orthonormalize::rcqr, Orthonormalize::cholesky_qr for ";
const std::string kName = "parameter 0 (parameter group 0)";

INSTANTIATE_TEST_SUITE_P(
    Kind, RefusedLayout,
    testing::Values(
        LayoutCase{"NoSizes",
                   {6, 4},
                   {},
                   rows,
                   {},
                   "the layout of " + kName + " must have the 2 sizes of the whole parameter, got []"},
        LayoutCase{"Dimensions",
                   {6, 4},
                   {},
                   rows,
                   {12, 2, 2},
                   "the layout of " + kName + " must have the 2 sizes of the whole parameter, got [12, 2, 2]"},
        LayoutCase{"Piece",
                   {6, 4},
                   {},
                   rows,
                   {13, 4},
                   kName +
                       " must be this rank's piece of shape [7, 4] of a parameter of shape [13, 4] as its layout says, "
                       "got [6, 4]"},
        LayoutCase{"UncutSide",
                   {6, 4},
                   {},
                   rows,
                   {12, 8},
                   kName +
                       " must be this rank's piece of shape [6, 8] of a parameter of shape [12, 8] as its layout says, "
                       "got [6, 4]"},
        LayoutCase{"Vector", {6}, {}, cols, {12}, kName + " of shape [6] has no columns that its layout could cut"},
        LayoutCase{"NoStack",
                   {3, 4, 5},
                   {},
                   batch,
                   {6, 4, 5},
                   kName + " of shape [3, 4, 5] has no stack that its layout could cut"},
        LayoutCase{"Blocks",
                   {6, 4},
                   DionOptions().blocks(3),
                   rows,
                   {12, 4},
                   kName + " of shape [12, 4] has blocks(3) along its rows, which may not be cut, got a cut of "
                           "dimension 0; with blocks(1) it is one matrix"},
        LayoutCase{
            "Convolution",
            {8, 2, 3, 3},
            {},
            cols,
            {8, 4, 3, 3},
            kName + " of shape [8, 4, 3, 3] is a convolution (batch_dims(0)), which may be cut on dimension 0, got a "
                    "cut of dimension 1"},
        LayoutCase{
            "TransposedConvolution",
            {8, 2, 3, 3},
            DionOptions().fan_in_first(true),
            rows,
            {8, 4, 3, 3},
            kName + " of shape [8, 4, 3, 3] is a convolution (batch_dims(0)), which may be cut on dimension 0, got a "
                    "cut of dimension 1"},
        LayoutCase{
            "HouseholderRight",
            {6, 4},
            DionOptions().orthonormalize(Orthonormalize::qr),
            cols,
            {6, 8},
            kHouseholder + kName + ", whose columns are cut (orientation(Orientation::right)), got Orthonormalize::qr"},
        LayoutCase{
            "HouseholderLeft",
            {6, 4},
            DionOptions().orthonormalize(Orthonormalize::qr).orientation(Orientation::left),
            rows,
            {12, 4},
            kHouseholder + kName + ", whose rows are cut (orientation(Orientation::left)), got Orthonormalize::qr"},
        LayoutCase{"OneAxisTwice",
                   {6, 4},
                   {},
                   [](Layout& layout, const Axis& axis) { layout.rows = layout.cols = axis; },
                   {12, 8},
                   "the layout of " + kName +
                       " must have another axis for each of rows, cols, replicas, copies and batch, got fs twice"}),
    [](const auto& info) { return info.param.name; });

TEST(RefusedLayout, OfATensorThatIsNoParameter) {
  const Model model;
  Dion optimizer(std::vector<at::Tensor>{model.weight});
  EXPECT_EQ(
      message_of([&] { optimizer.set_layout(model.square, {}); }),
      "torchdion::Dion: a layout must be set for a parameter of the optimizer, got another tensor, of shape [9, 9]");
}

TEST(RefusedLayout, OfAParameterThatHasState) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 1);
  EXPECT_EQ(
      message_of([&] { optimizer.set_layout(model.experts, {}); }),
      "torchdion::Dion: the layout of parameter 0 (parameter group 1) must be set before its state exists: before "
      "its first step and before a checkpoint is loaded");
}

TEST(RefusedLayout, ThatOptionsNoLongerAllowWhenAStepIsTaken) {
  Mesh({1, 2, 1}).run([](MeshAxes axes) {
    const at::Tensor weight = Model::leaf({6, 4}, 1);
    Dion optimizer(std::vector<at::Tensor>{weight}, DionOptions().orientation(Orientation::left));
    optimizer.set_layout(weight, {.rows = axes.fs, .sizes = {12, 4}});
    const bool refuses = axes.rank == 0;
    if (refuses) {
      static_cast<DionOptions&>(optimizer.param_groups()[0].options()).orthonormalize(Orthonormalize::qr);
    }
    at::Tensor(weight).mutable_grad() = normal({6, 4}, 2);
    const std::string sentence = message_of([&] { optimizer.step(); });
    const std::string expected = refuses ? "torchdion::Dion: orthonormalize must be"
                                         : "torchdion::Dion: another rank refused this step, and its error says why";
    EXPECT_EQ(sentence.substr(0, expected.size()), expected);
    EXPECT_TRUE(optimizer.state().empty());
  });
}

}  // namespace

}  // namespace torchdion
