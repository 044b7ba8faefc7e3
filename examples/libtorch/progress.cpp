#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

namespace gpt {

namespace {

constexpr int64_t kLinesPerRun = 20;
constexpr const char* kRenewed = "\r\x1b[K";  // back to the line's start, and the rest of it cleared

std::string words_of(const StepReport& report) {
  char words[128];
  std::snprintf(words, sizeof words, "loss %.4f, %.0f tokens/s, optimizer %.1f ms", report.loss,
                report.tokens_per_second, report.optimizer_ms);
  return words;
}

}  // namespace

Progress::Progress(int64_t steps) : steps_(steps), renews_(isatty(STDOUT_FILENO)) {}

Progress::~Progress() {
  if (renews_) std::cout << kRenewed << std::flush;
}

void Progress::update(int64_t step, const StepReport& report) {
  if (renews_) {
    std::cout << kRenewed << "step " << step << "/" << steps_ << ": " << words_of(report) << std::flush;
  } else if (step % std::max<int64_t>(1, steps_ / kLinesPerRun) == 0 || step == 1 || step == steps_) {
    say(step, words_of(report));
  }
}

void Progress::say(int64_t step, const std::string& words) {
  std::cout << (renews_ ? kRenewed : "") << "step " << step << "/" << steps_ << ": " << words << std::endl;
}

}  // namespace gpt
