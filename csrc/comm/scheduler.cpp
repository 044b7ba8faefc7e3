#include "comm/scheduler.h"

#include <deque>
#include <memory>

#include "comm/failure.h"
#include "comm/trace.h"

namespace torchdion::comm {

// Defined in the library: inline ones would be others in every shared object.
constinit thread_local bool stopping = false;
constinit thread_local Trace* active_trace = nullptr;

namespace {

struct Root {
  Task<> task;
  int slot;
  int number;  // in the list of tasks
  std::coroutine_handle<> cursor;
};

}  // namespace

void Scheduler::run(const std::vector<Factory>& tasks, std::size_t early, const std::function<void()>& then) {
  completed_ = 0;
  std::deque<std::unique_ptr<Root>> alive, waiting;
  std::vector<int> free_slots;
  for (int slot = width_; slot-- > 0;) free_slots.push_back(slot);
  std::exception_ptr error;
  const bool outer = stopping;
  const auto fail = [&](std::exception_ptr reason, int number) {
    if (error) return;
    error = std::move(reason);
    failed_ = number;
    stopping = true;
  };

  auto next = tasks.begin();
  // Makes the next task.
  const auto start = [&](int slot, std::deque<std::unique_ptr<Root>>& roots) {
    const int number = static_cast<int>(next - tasks.begin());
    const Factory& make = *next++;
    try {
      roots.push_back(std::make_unique<Root>(Root{make(slot), slot, number, {}}));
      roots.back()->task.start_at(&roots.back()->cursor);
    } catch (...) {
      fail(std::current_exception(), number);
    }
  };
  // Gives a turn to each of them.
  const auto resume_all = [&](std::deque<std::unique_ptr<Root>>& roots) {
    for (std::size_t turns = roots.size(); turns-- > 0;) {
      std::unique_ptr<Root> root = std::move(roots.front());
      roots.pop_front();
      if (active_trace) active_trace->task = root->number;
      root->cursor.resume();
      if (active_trace) active_trace->task = -1;
      if (!root->task.done()) {
        roots.push_back(std::move(root));
        continue;
      }
      if (root->slot != kNoSlot) free_slots.push_back(root->slot);
      if (root->task.promise().error) {
        fail(root->task.promise().error, root->number);
      } else {
        ++completed_;
      }
    }
  };

  while (early-- > 0 && !error) start(kNoSlot, waiting);
  resume_all(waiting);
  if (then && !error) {
    try {
      then();
    } catch (...) {
      fail(std::current_exception(), 0);
    }
  }
  while (!alive.empty() || (next != tasks.end() && !error)) {
    // One new task a round: the tasks alive stay at different places of their work.
    if (next != tasks.end() && !error && !free_slots.empty()) {
      start(free_slots.back(), alive);
      free_slots.pop_back();
    }
    resume_all(alive);
  }
  while (!waiting.empty()) resume_all(waiting);
  stopping = outer;
  if (error) std::rethrow_exception(error);
}

void run(Task<> task) {
  Scheduler(1).run({[&task](int) { return std::move(task); }});
}

}  // namespace torchdion::comm
