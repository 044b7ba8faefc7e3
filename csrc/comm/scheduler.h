// Scheduler: drives a few tasks round robin on the calling thread, so that one batch computes while another waits for
// its collective. It resumes in turn and never on completion: the order in which collectives are issued follows from
// the list of tasks alone, the same on every rank whatever the timing.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "comm/task.h"

namespace torchdion::comm {

class Scheduler {
 public:
  // Makes one task when its turn comes. `slot` < width is unique among the tasks alive: the task may use what the
  // caller has set aside for that slot, such as its workspace; early ones get kNoSlot.
  using Factory = std::function<Task<>(int slot)>;
  static constexpr int kNoSlot = -1;

  // At most `width` ≥ 1 tasks are alive at a time; 1 runs them one after the other.
  explicit Scheduler(int width) : width_(width) {}

  // Runs every task to its end. When a task throws, no further one is started, those alive run until they have waited
  // for the collective that they have in flight (so that none outlives the memory it writes; without one, to their own
  // end), and the first exception is rethrown.
  // The first `early` of them are beside the others: all are started at once, and go on when the others have ended.
  // What they exchange has as long. `then` is called between.
  void run(const std::vector<Factory>& tasks, std::size_t early = 0, const std::function<void()>& then = {});

  // How many tasks of the last run() ended without an exception.
  std::size_t completed() const { return completed_; }

  // The place in the list of the task whose exception the last run() rethrew.
  std::size_t failed() const { return failed_; }

 private:
  int width_;
  std::size_t completed_ = 0, failed_ = 0;
};

// Runs one task to its end.
void run(Task<> task);

}  // namespace torchdion::comm
