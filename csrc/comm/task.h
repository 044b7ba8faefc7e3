// Task: a lazily started coroutine. An algorithm is one Task; where it must wait for a collective it suspends, and
// the Scheduler runs other tasks meanwhile.
//
// g++ 12 miscompiles some shapes of co_await: csrc/README.md has the rule that avoids them, which
// tests/check_coroutines.py checks.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace torchdion::comm {

struct PromiseBase {
  std::coroutine_handle<> caller;             // the task that awaits this one; null for a root
  std::coroutine_handle<>* cursor = nullptr;  // the root's innermost frame: the one the scheduler resumes
  std::exception_ptr error;

  // At its end a task hands control straight to its caller; a root hands it back to the scheduler.
  struct ReturnToCaller {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) noexcept {
      PromiseBase& promise = self.promise();
      if (!promise.caller) return std::noop_coroutine();
      *promise.cursor = promise.caller;
      return promise.caller;
    }
    void await_resume() noexcept {}
  };

  std::suspend_always initial_suspend() noexcept { return {}; }
  ReturnToCaller final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { error = std::current_exception(); }
  void rethrow() const {
    if (error) std::rethrow_exception(error);
  }
};

template <class T>
struct Promise;

template <class T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = Promise<T>;

  explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}
  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (frame_) frame_.destroy();
  }

  bool await_ready() const noexcept { return false; }
  template <class CallerPromise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<CallerPromise> caller) noexcept {
    PromiseBase& promise = frame_.promise();
    promise.caller = caller;
    promise.cursor = caller.promise().cursor;
    *promise.cursor = frame_;
    return frame_;
  }
  T await_resume() {
    promise().rethrow();
    if constexpr (!std::is_void_v<T>) return std::move(*frame_.promise().value);
  }

  // For the scheduler, which drives the outermost task by hand.
  bool done() const { return frame_.done(); }
  void start_at(std::coroutine_handle<>* cursor) {
    frame_.promise().cursor = cursor;
    *cursor = frame_;
  }
  const PromiseBase& promise() const { return frame_.promise(); }

 private:
  std::coroutine_handle<promise_type> frame_;
};

template <class T>
struct Promise : PromiseBase {
  std::optional<T> value;
  Task<T> get_return_object() { return Task<T>(std::coroutine_handle<Promise>::from_promise(*this)); }
  void return_value(T result) { value = std::move(result); }
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object() { return Task<void>(std::coroutine_handle<Promise>::from_promise(*this)); }
  void return_void() {}
};

}  // namespace torchdion::comm
