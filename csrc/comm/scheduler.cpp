#include "comm/scheduler.h"

#include <deque>
#include <memory>
#include <stdexcept>

#include "comm/stop.h"
#include "comm/trace.h"

namespace torchdion::comm {

constinit thread_local bool stopping = false;

namespace {

struct Root {
  Task<> task;
  int slot;
  int number;  // in the list of tasks
  std::coroutine_handle<> cursor;
};

void resume(Root& root) {
  if (active_trace) active_trace->task = root.number;
  root.cursor.resume();
  if (active_trace) active_trace->task = -1;
}

}  // namespace

Scheduler::Scheduler(int width) : width_(width) {
  if (width < 1) throw std::invalid_argument("Scheduler: width must be at least 1, got " + std::to_string(width));
}

void Scheduler::run(const std::vector<Factory>& tasks) {
  completed_ = 0;
  std::deque<std::unique_ptr<Root>> alive;
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
  while (!alive.empty() || (next != tasks.end() && !error)) {
    // One new task a round: the tasks alive stay at different places of their work.
    if (next != tasks.end() && !error && !free_slots.empty()) {
      const int slot = free_slots.back(), number = static_cast<int>(next - tasks.begin());
      try {
        alive.push_back(std::make_unique<Root>(Root{(*next)(slot), slot, number, {}}));
        alive.back()->task.start_at(&alive.back()->cursor);
        free_slots.pop_back();
      } catch (...) {
        fail(std::current_exception(), number);
      }
      ++next;
    }
    for (std::size_t turns = alive.size(); turns-- > 0;) {
      std::unique_ptr<Root> root = std::move(alive.front());
      alive.pop_front();
      resume(*root);
      if (!root->task.done()) {
        alive.push_back(std::move(root));
        continue;
      }
      free_slots.push_back(root->slot);
      if (root->task.promise().error) {
        fail(root->task.promise().error, root->number);
      } else {
        ++completed_;
      }
    }
  }
  stopping = outer;
  if (error) std::rethrow_exception(error);
}

void run(Task<> task) {
  Scheduler(1).run({[&task](int) { return std::move(task); }});
}

}  // namespace torchdion::comm
