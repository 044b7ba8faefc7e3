#include "run.h"

#include <ATen/Parallel.h>

#include <cstdio>
#include <iostream>
#include <sstream>

#include "checkpoint.h"
#include "interrupt.h"
#include "problem.h"
#include "trainer.h"

namespace gpt {

namespace {

// What the newest checkpoint holds, if this is to go on from it.
std::optional<c10::impl::GenericDict> state_to_resume(const Options& options) {
  const std::optional<std::string> path = newest_checkpoint(options.run);
  if (path && !options.resume && !options.overwrite) {
    throw Problem(options.run + " holds a run already; give --resume, --overwrite or another --run");
  }
  if (!options.resume) return std::nullopt;
  if (path) return load_checkpoint(*path);
  std::cout << options.run << " holds no checkpoint; starting from the first step" << std::endl;
  return std::nullopt;
}

constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=,+:";

// A word as a shell reads it back.
std::string quoted(const std::string& word) {
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::ostringstream text;
  text << '\'';
  for (const char byte : word) text << (byte == '\'' ? "'\\'" : "") << byte;
  text << '\'';
  return text.str();
}

std::string resume_command(const std::string& program, const std::vector<std::string>& arguments) {
  std::string command = quoted(program);
  for (const std::string& argument : arguments) {
    if (argument != "--resume" && argument != "--overwrite") command.append(" ").append(quoted(argument));
  }
  return command.append(" --resume");
}

void validate(Trainer& trainer, Progress& progress) {
  char words[64];
  std::snprintf(words, sizeof words, "validation loss %.4f", trainer.validate());
  progress.say(trainer.step(), words);
}

// Trains to the last step. Returns the number of the signal that ended it before, or 0; there is a checkpoint then.
int finish(Trainer& trainer, const Options& options, int64_t fingerprint) {
  const auto save = [&] { save_checkpoint(options.run, trainer.step(), trainer.state(), options.recipe, fingerprint); };
  const Interrupt interrupt;
  Progress progress(options.recipe.steps);
  while (trainer.step() < options.recipe.steps) {
    if (interrupt.signal() != 0) {
      save();
      return interrupt.signal();
    }
    const StepReport report = trainer.train_step();
    progress.update(trainer.step(), report);
    const bool last = trainer.step() == options.recipe.steps;
    if (last || trainer.step() % options.recipe.validate_every == 0) validate(trainer, progress);
    if (last || trainer.step() % options.checkpoint_every == 0) save();
  }
  return 0;
}

int train(const Options& options, const std::optional<c10::impl::GenericDict>& state, const std::string& resume) {
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  const Text text(options.text);
  check_length(text, options.text, options.recipe.context);
  const int64_t fingerprint = text.fingerprint();
  Trainer trainer(options.recipe, text);
  if (state) {
    if (fingerprint_of(*state) != fingerprint)
      throw Problem(options.text + " is not the text of the run to be resumed");
    trainer.load(*state);
    std::cout << "resuming " << options.run << " after step " << trainer.step() << std::endl;
  }
  if (trainer.step() >= options.recipe.steps) {
    std::cout << options.run << " has all of its " << options.recipe.steps << " steps already" << std::endl;
    return 0;
  }
  prepare_folder(options.run, /*afresh=*/!state);
  if (const int signal = finish(trainer, options, fingerprint); signal != 0) {
    std::cout << "interrupted after step " << trainer.step() << "; to go on: " << resume << std::endl;
    return 128 + signal;
  }
  if (options.sample_length > 0) std::cout << trainer.sample(options.sample_length) << std::endl;
  return 0;
}

}  // namespace

int run(const std::string& program, const std::vector<std::string>& arguments) {
  Options options = parse(arguments);
  if (options.help) {
    std::cout << help();
    return 0;
  }
  const std::optional<c10::impl::GenericDict> state = state_to_resume(options);
  if (state) {
    const Recipe saved = recipe_of(*state);
    options = parse(arguments, saved);
    check_continues(options.recipe, saved);
  }
  check(options.recipe);
  return train(options, state, resume_command(program, arguments));
}

}  // namespace gpt
