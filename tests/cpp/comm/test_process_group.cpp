#include <torchdion/process_group.h>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdlib>
#include <filesystem>
#include <thread>

namespace torchdion {

namespace {

// Ranks are threads here, which torch's flight recorder does not bear.
const int kNoFlightRecorder = setenv("TORCH_FR_BUFFER_SIZE", "0", 1);

const GlooOptions kHere{.timeout = std::chrono::seconds(20), .hostname = "127.0.0.1"};

double sum_over(c10d::ProcessGroup& group, double number) {
  std::vector<at::Tensor> tensors{at::full({3}, number, at::kDouble)};
  group.allreduce(tensors)->wait();
  return tensors[0].sum().item<double>() / 3;
}

TEST(GlooGroup, OfTwoThreadsAddsWhatTheyHaveAndIsFoundByItsName) {
  ASSERT_EQ(kNoFlightRecorder, 0);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  double sums[2] = {};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      GlooOptions options = kHere;
      options.name = "pair of rank " + std::to_string(rank);
      const auto group = gloo_group(store, rank, 2, options);
      EXPECT_EQ(c10d::resolve_process_group(options.name).get(), group.get());
      EXPECT_EQ(group->getRank(), rank);
      sums[rank] = sum_over(*group, rank + 1);
      c10d::unregister_process_group(options.name);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(sums[0], 3);
  EXPECT_EQ(sums[1], 3);
}

TEST(GlooGroup, OfTwoProcessesAddsWhatTheyHave) {
  const std::filesystem::path meeting =
      std::filesystem::temp_directory_path() / ("torchdion.meeting." + std::to_string(getpid()));
  pid_t children[2];
  for (int rank = 0; rank < 2; ++rank) {
    children[rank] = fork();
    if (children[rank] != 0) continue;
    const auto group = gloo_group(c10::make_intrusive<c10d::FileStore>(meeting.string(), 2), rank, 2, kHere);
    _exit(sum_over(*group, rank + 1) == 3 ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  std::filesystem::remove(meeting);
}

TEST(GlooGroup, OfNoRankOrWithoutTheOthersIsRefused) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THROW(gloo_group({}, 0, 1), c10::ValueError);
  EXPECT_THROW(gloo_group(store, 2, 2), c10::ValueError);
  EXPECT_THROW(gloo_group(store, -1, 2), c10::ValueError);
  EXPECT_THROW(gloo_group(store, 0, 0), c10::ValueError);
  EXPECT_THROW(gloo_group(store, 0, 1, {.timeout = std::chrono::seconds(0)}), c10::ValueError);
  EXPECT_ANY_THROW(gloo_group(store, 0, 2, {.timeout = std::chrono::milliseconds(100), .hostname = "127.0.0.1"}));
}

}  // namespace

}  // namespace torchdion
