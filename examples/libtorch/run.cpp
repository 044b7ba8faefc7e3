#include "run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <thread>

#include "checkpoint.h"
#include "interrupt.h"
#include "job.h"
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

void validate(Trainer& trainer, Progress* progress) {
  char words[64];
  std::snprintf(words, sizeof words, "validation loss %.4f", trainer.validate());
  if (progress) progress->say(trainer.step(), words);
}

// The signal that came to any of the processes, or 0. It has ended those that did not note signals yet; the others,
// which find them gone, follow.
int signal_of_all(const Interrupt& interrupt, const Job& job) {
  try {
    return static_cast<int>(job.largest(interrupt.signal()));
  } catch (const std::exception&) {
    interrupt.follow();
    throw;
  }
}

// Trains to the last step. Returns the number of the signal that ended it before, or 0; there is a checkpoint then.
int finish(Trainer& trainer, const Options& options, int64_t fingerprint, const Job& job) {
  const auto save = [&] {
    const c10::impl::GenericDict state = trainer.state();
    if (job.leads()) save_checkpoint(options.run, trainer.step(), state, options.recipe, fingerprint);
  };
  const Interrupt interrupt;
  const std::unique_ptr<Progress> progress = job.leads() ? std::make_unique<Progress>(options.recipe.steps) : nullptr;
  while (trainer.step() < options.recipe.steps) {
    // A signal may come to one process a step earlier than to another.
    if (const int signal = signal_of_all(interrupt, job); signal != 0) {
      save();
      return signal;
    }
    const StepReport report = trainer.train_step();
    if (progress) progress->update(trainer.step(), report);
    const bool last = trainer.step() == options.recipe.steps;
    if (last || trainer.step() % options.recipe.validate_every == 0) validate(trainer, progress.get());
    if (last || trainer.step() % options.checkpoint_every == 0) save();
  }
  return 0;
}

// What a run is made of, read and checked.
struct Plan {
  Options options;
  Text text;
  int64_t fingerprint;
  std::optional<c10::impl::GenericDict> state;  // to go on from
  std::string resume;                           // the command that goes on
};

void set_threads(const Options& options) {
  const int64_t cores = std::thread::hardware_concurrency();
  if (options.threads > 0 || options.ranks > 1) {
    at::set_num_threads(
        static_cast<int>(options.threads > 0 ? options.threads : std::max<int64_t>(1, cores / options.ranks)));
  }
}

// One process' part of the run; the leader alone prints.
int train_in(const Job& job, const Plan& plan) {
  set_threads(plan.options);
  Trainer trainer(plan.options.recipe, plan.text, job);
  if (plan.state) trainer.load(*plan.state);
  if (job.leads()) prepare_folder(plan.options.run, /*afresh=*/!plan.state);  // nothing can be refused any more
  const int signal = finish(trainer, plan.options, plan.fingerprint, job);
  if (!job.leads()) return 0;
  if (signal != 0) {
    std::cout << "interrupted after step " << trainer.step() << "; to go on: " << plan.resume << std::endl;
    return 128 + signal;
  }
  if (plan.options.sample_length > 0) std::cout << trainer.sample(plan.options.sample_length) << std::endl;
  return 0;
}

int train(const Options& options, const std::optional<c10::impl::GenericDict>& state, const std::string& resume) {
  Text text(options.text);
  check_length(text, options.text, options.recipe.context);
  const int64_t fingerprint = text.fingerprint();
  const Plan plan{options, std::move(text), fingerprint, state, resume};
  if (state) {
    if (fingerprint_of(*state) != fingerprint)
      throw Problem(options.text + " is not the text of the run to be resumed");
    const int64_t step = state->at("step").toInt();
    std::cout << "resuming " << options.run << " after step " << step << std::endl;
    if (step >= options.recipe.steps) {
      std::cout << options.run << " has all of its " << options.recipe.steps << " steps already" << std::endl;
      return 0;
    }
  }
  const at::DeviceType type = options.device == "cuda" ? at::kCUDA : at::kCPU;
  return in_processes(static_cast<int>(options.ranks), type, [&](const Job& job) { return train_in(job, plan); });
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
  check(options);
  return train(options, state, resume_command(program, arguments));
}

}  // namespace gpt
