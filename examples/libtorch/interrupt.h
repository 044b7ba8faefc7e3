// Ctrl-C as a request: the step in progress is finished first.
#pragma once

namespace gpt {

// While it lives, a first SIGINT or SIGTERM is only noted; a second one ends the process at once.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  int signal() const;   // its number; 0: none came
  void follow() const;  // ends the process by the signal that was noted, if one was
};

}  // namespace gpt
