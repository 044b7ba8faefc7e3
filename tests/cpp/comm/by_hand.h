// Tasks driven turn by turn, without the scheduler.
#pragma once

#include "comm/task.h"

namespace torchdion::comm {

// A co_await of this hands control back for one turn.
inline std::suspend_always one_turn() { return {}; }

class ByHand {
 public:
  explicit ByHand(Task<> task) : task_(std::move(task)) { task_.start_at(&cursor_); }
  ByHand(const ByHand&) = delete;

  bool done() const { return task_.done(); }
  void turn() { cursor_.resume(); }
  int turns_to_the_end() {
    int turns = 0;
    for (; !done(); ++turns) turn();
    task_.promise().rethrow();
    return turns;
  }

 private:
  Task<> task_;
  std::coroutine_handle<> cursor_;
};

}  // namespace torchdion::comm
