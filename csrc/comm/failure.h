// The one sentence of a collective that fails, and how other tasks end after it: each waits for what it has in flight
// and starts nothing more.
#pragma once

#include <c10/util/Exception.h>
#include <torchdion/layout.h>

#include <exception>

namespace torchdion::comm {

// part(), which starts a collective or waits for it. Throws c10::DistBackendError, which says where it failed and why.
template <class Part>
auto named(const char* kind, const Axis& axis, Part part) {
  try {
    return part();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const c10::Error*>(&error);
    C10_THROW_ERROR(DistBackendError,
                    c10::str("torchdion: the ", kind, " over the axis '", axis.name(), "' of ", axis.size,
                             " ranks failed: ", known ? known->what_without_backtrace() : error.what()));
  }
}

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
