// What a person sees of a run: a line that renews itself on a terminal, now and then a plain line elsewhere.
#pragma once

#include <cstdint>
#include <string>

namespace gpt {

struct StepReport {
  double loss;  // nats per byte, before the update
  double tokens_per_second;
  double optimizer_ms;
};

class Progress {
 public:
  explicit Progress(int64_t steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t step, const StepReport& report);

  // A line that stays.
  void say(int64_t step, const std::string& words);

 private:
  int64_t steps_;
  bool renews_;
};

}  // namespace gpt
