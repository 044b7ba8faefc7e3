// Tasks that end early because another one failed: each waits for what it has in flight and starts nothing more.
#pragma once

#include <exception>

namespace torchdion::comm {

// What such a task throws.
struct Stopped : std::exception {
  const char* what() const noexcept override { return "another task failed"; }
};

// Set by the scheduler of this thread once a task has failed.
extern constinit thread_local bool stopping;

inline void throw_if_stopping() {
  if (stopping) throw Stopped();
}

}  // namespace torchdion::comm
