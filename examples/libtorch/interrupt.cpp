#include "interrupt.h"

#include <csignal>

namespace gpt {

namespace {

volatile std::sig_atomic_t noted = 0;

void set_handlers(void (*handler)(int)) {
  std::signal(SIGINT, handler);
  std::signal(SIGTERM, handler);
}

void note(int number) {
  noted = number;
  set_handlers(SIG_DFL);
}

}  // namespace

Interrupt::Interrupt() {
  noted = 0;
  set_handlers(note);
}

Interrupt::~Interrupt() { set_handlers(SIG_DFL); }

int Interrupt::signal() const { return noted; }

void Interrupt::follow() const {
  if (noted != 0) std::raise(noted);
}

}  // namespace gpt
