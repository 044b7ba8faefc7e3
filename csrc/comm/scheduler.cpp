#include "comm/scheduler.h"

#include <deque>
#include <memory>
#include <stdexcept>

#include "comm/trace.h"

namespace torchdion::comm {

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

  auto next = tasks.begin();
  while (!alive.empty() || (next != tasks.end() && !error)) {
    // One new task a round: the tasks alive stay at different places of their work.
    if (next != tasks.end() && !error && !free_slots.empty()) {
      const int slot = free_slots.back();
      try {
        const int number = static_cast<int>(next - tasks.begin());
        alive.push_back(std::make_unique<Root>(Root{(*next)(slot), slot, number, {}}));
        alive.back()->task.start_at(&alive.back()->cursor);
        free_slots.pop_back();
      } catch (...) {
        error = std::current_exception();
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
      if (!root->task.promise().error) {
        ++completed_;
      } else if (!error) {
        error = root->task.promise().error;
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

void run(Task<> task) {
  Scheduler(1).run({[&task](int) { return std::move(task); }});
}

}  // namespace torchdion::comm
