// The training state and what happens to it: one step, one validation, saved and restored.
#pragma once

#include <torchdion/torchdion.h>

#include <memory>
#include <string>

#include "job.h"
#include "model.h"
#include "options.h"
#include "progress.h"
#include "text.h"

namespace gpt {

class Trainer {
 public:
  // Begins with the weights that the recipe's seed draws; `text` and `job` must outlive the trainer. What it does is
  // done by all processes of the job at once, and comes to the same on each.
  Trainer(const Recipe& recipe, const Text& text, const Job& job);

  int64_t step() const { return step_; }  // the updates made

  // One update from the next batch. Throws Problem when the loss is not finite.
  StepReport train_step();

  // Mean loss, in nats per byte, over the same validation windows every time.
  double validate();

  std::string sample(int64_t length);

  // Everything that the next step depends on: {"step", "model", "optimizer", "random"}. The batches need no more than
  // the step; see text.h. Tensors are shared with the trainer.
  c10::impl::GenericDict state();
  void load(const c10::impl::GenericDict& state);

 private:
  at::Tensor loss_of(const Batch& batch);
  double finite(double loss) const;

  Recipe recipe_;
  const Job& job_;
  std::shared_ptr<GPT> model_;
  std::unique_ptr<torchdion::Optimizer> optimizer_;
  Windows train_;
  Batch validation_;
  int64_t step_ = 0;
};

}  // namespace gpt
