// Delayed Double Dion: what a step leaves in flight, and who waits for it.
#include <gtest/gtest.h>

#include <chrono>

#include "comm/line.h"
#include "optim/model_on_mesh.h"

namespace torchdion {

namespace {

// A rank's optimizer of one 12×20 matrix, whose replicas exchange a column each of P and R.
struct Delayed {
  Delayed(const Axis& replicas, comm::Meeting* in_flight) : param(Model::leaf({12, 20}, 1)), rank(replicas.rank) {
    if (in_flight) replicas.set_in_flight_group(comm::axis_of(in_flight, rank).line->group);
    optimizer.set_layout(param, {.replicas = replicas});
  }

  void step() {
    param.mutable_grad() = normal(param.sizes(), 7 + rank);
    optimizer.step();
  }

  at::Tensor param;
  int rank;
  DoubleDion optimizer{std::vector<at::Tensor>{param}, DoubleDionOptions(0.1).delayed(true)};
};

TEST(DelayedStep, IsRefusedOnAllRanksWhereAnAxisHasNoSecondGroup) {
  comm::Meeting first(2), second(2);
  comm::on_every_rank(&first, [&](Axis replicas) {
    Delayed delayed(replicas, replicas.rank == 0 ? nullptr : &second);
    const std::string sentence = message_of([&] { delayed.step(); });
    EXPECT_NE(sentence.find(replicas.rank == 0 ? "must have a second process group for what goes on between steps"
                                               : "another rank refused this step"),
              std::string::npos)
        << sentence;
    EXPECT_EQ(delayed.optimizer.stats().steps, 0);
  });
}

TEST(DelayedStep, IsWaitedForByAllThatLooksAtStates) {
  comm::Meeting first(2), second(2);
  second.delay = [](int, int) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  using Call = std::function<void(DoubleDion&)>;
  const std::vector<Call> calls = {
      [](DoubleDion& optimizer) { message_of([&] { optimizer.state_dict(); }); },  // refused afterwards: momenta differ
      [](DoubleDion& optimizer) { optimizer.whole_state_dict(); },
      [](DoubleDion& optimizer) { optimizer.synchronize_for_checkpoint(); },
      [](DoubleDion& optimizer) { optimizer.check_replicas(); },
      [](DoubleDion& optimizer) { optimizer.synchronize_replicas(); },
      [](DoubleDion& optimizer) { optimizer.resize_rank(); },
      [](DoubleDion& optimizer) { optimizer.stats(); },
  };
  comm::on_every_rank(&first, [&](Axis replicas) {
    at::Tensor expected;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      Delayed delayed(replicas, &second);
      for (int step = 0; step < 3; ++step) delayed.step();
      calls[i](delayed.optimizer);
      const auto& states = static_cast<const DoubleDion&>(delayed.optimizer).state();
      const auto& state = static_cast<const ParamState&>(*states.at(delayed.param.unsafeGetTensorImpl()));
      const at::Tensor momentum = state.momentum().clone();  // without the method that would wait
      if (i == 0) expected = delayed.optimizer.state_of(delayed.param).momentum().clone();
      EXPECT_TRUE(bitwise_equal(momentum, expected)) << "call " << i;
    }
  });
}

TEST(DelayedStep, WhoseRestFailsIsAnErrorOfTheNextCallAndMendedByLoading) {
  comm::Meeting first(2), second(2);
  second.fails_at = 0;
  comm::on_every_rank(&first, [&](Axis replicas) {
    Delayed delayed(replicas, &second);
    const c10::IValue before = delayed.optimizer.state_dict();
    delayed.step();
    EXPECT_NE(message_of([&] { delayed.optimizer.stats(); }).find("connection lost"), std::string::npos);
    const char* broken =
        "torchdion::DoubleDion: what the last step had left in flight failed after 0 of 1 batches; load a checkpoint";
    EXPECT_EQ(message_of([&] { delayed.optimizer.state_dict(); }), broken);
    EXPECT_EQ(message_of([&] { delayed.step(); }).find("torchdion::DoubleDion: "), 0);
    delayed.optimizer.load_state_dict(before);
    delayed.step();
    EXPECT_EQ(message_of([&] { delayed.optimizer.stats(); }), "");
  });
}

TEST(DelayedStep, OverAnAxisThatCarriesAnotherOptimizersIsRefused) {
  comm::Meeting first(2), second(2);
  comm::on_every_rank(&first, [&](Axis replicas) {
    Delayed one(replicas, &second), other(replicas, nullptr);
    one.step();
    const std::string sentence = message_of([&] { other.step(); });
    EXPECT_NE(sentence.find("got another's: give each an Axis of its own"), std::string::npos) << sentence;
    one.optimizer.stats();
    other.step();
    EXPECT_EQ(other.optimizer.stats().steps, 1);
  });
}

TEST(DelayedStep, OfAnOptimizerThatMovesOrEndsIsWaitedFor) {
  comm::Meeting first(2), second(2);
  comm::on_every_rank(&first, [&](Axis replicas) {
    Delayed delayed(replicas, &second);
    delayed.step();
    DoubleDion moved = std::move(delayed.optimizer);
    moved.step();
    moved = DoubleDion({Model::leaf({3, 3}, 1)});
    EXPECT_EQ(replicas.traffic().elements(), 2 * (12 + 20));
  });
}

}  // namespace

}  // namespace torchdion
