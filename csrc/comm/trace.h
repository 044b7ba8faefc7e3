// What a step did, in order: for tests that ask about overlap and about the order of collectives. Nothing is recorded,
// and nothing costs more than a branch, unless a Trace is active on the thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torchdion::comm {

struct Event {
  std::string what;  // "issue" and "wait" of a collective, or an operation between them, such as "gemm"
  int task = -1;     // the place in the scheduler's list
  std::string axis, kind;
  int64_t elements = 0;
};

struct Trace {
  std::vector<Event> events;
  int task = -1;
};

extern constinit thread_local Trace* active_trace;

inline void note(const char* what) {
  if (active_trace) active_trace->events.push_back({what, active_trace->task, {}, {}, 0});
}

}  // namespace torchdion::comm
