#include "options.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>

#include "problem.h"
#include "room.h"

namespace gpt {

namespace {

constexpr double kLargestWhole = std::numeric_limits<int32_t>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string flag_of(const std::string& name) {
  std::string flag = "--" + name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string text_of(double number) {
  std::ostringstream text;
  text.precision(10);
  text << number;
  return text.str();
}

double number_of(const Field& field) {
  return std::visit([](const auto* value) { return static_cast<double>(*value); }, field.value);
}

std::string allowed(const Field& field) {
  std::string words = std::holds_alternative<int64_t*>(field.value) ? "a whole number" : "a number";
  words += (field.lowest_is_allowed ? " of at least " : " above ") + text_of(field.lowest);
  return field.highest < kInfinity ? words + " and at most " + text_of(field.highest) : words;
}

void read(const Field& field, const std::string& text) {
  std::visit(
      [&](auto* value) {
        auto number = *value;
        const char* end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, number);
        const auto real = static_cast<double>(number);
        const bool large_enough = field.lowest_is_allowed ? real >= field.lowest : real > field.lowest;
        if (error != std::errc() || rest != end || !std::isfinite(real) || !large_enough || real > field.highest) {
          throw Problem(flag_of(field.name) + " must be " + allowed(field) + ", got '" + text + "'");
        }
        *value = number;
      },
      field.value);
}

std::vector<Field> fields_of_session(Options& options) {
  return {
      {"checkpoint_every", &options.checkpoint_every, 1, true, kLargestWhole, "steps between checkpoints"},
      {"sample_length", &options.sample_length, 0, true, kLargestWhole, "bytes of text drawn at the end; 0: none"},
      {"ranks", &options.ranks, 1, true, kMostRanks, "processes, each with its share of every batch"},
      {"threads", &options.threads, 0, true, 1024, "threads of torch in each process; 0: of all cores together"},
  };
}

std::vector<Field> all_fields(Options& options) {
  std::vector<Field> all = fields(options.recipe);
  for (Field& field : fields_of_session(options)) all.push_back(std::move(field));
  return all;
}

bool read_switch(Options& options, const std::string& argument) {
  bool* found = argument == "--resume"      ? &options.resume
                : argument == "--overwrite" ? &options.overwrite
                : argument == "--help"      ? &options.help
                                            : nullptr;
  if (found) *found = true;
  return found;
}

// Flags whose values are words.
std::string* word_of(Options& options, const std::string& argument) {
  return argument == "--run" ? &options.run : argument == "--device" ? &options.device : nullptr;
}

}  // namespace

std::vector<Field> fields(Recipe& recipe) {
  return {
      {"layers", &recipe.layers, 1, true, 1000, "blocks of the model"},
      {"d_model", &recipe.d_model, 2, true, 65536, "width of the model"},
      {"heads", &recipe.heads, 1, true, 65536, "attention heads"},
      {"context", &recipe.context, 1, true, 1048576, "bytes in a window"},
      {"batch", &recipe.batch, 1, true, 1048576, "windows in a step"},
      {"steps", &recipe.steps, 1, true, kLargestWhole, "steps of the whole run"},
      {"lr", &recipe.lr, 0, false, kInfinity, "base learning rate of all parameters"},
      {"rank_fraction", &recipe.rank_fraction, 0, false, 1, "Dion's rank over a matrix's smaller side"},
      {"weight_decay", &recipe.weight_decay, 0, true, kInfinity, "on the blocks' matrices"},
      {"warmup", &recipe.warmup, 0, true, 1, "share of the steps over which the rate rises"},
      {"decay", &recipe.decay, 0, true, 1, "share of the steps over which it falls"},
      {"clip", &recipe.clip, 0, true, kInfinity, "largest norm of the gradient; 0: no clipping"},
      {"validate_every", &recipe.validate_every, 1, true, kLargestWhole, "steps between validations"},
      {"validation_windows", &recipe.validation_windows, 1, true, kLargestWhole, "windows in a validation"},
      {"seed", &recipe.seed, 0, true, kLargestWhole, "of weights, batches, sample and Dion"},
  };
}

Options parse(const std::vector<std::string>& arguments, const Recipe& recipe) {
  Options options;
  options.recipe = recipe;
  const std::vector<Field> known = all_fields(options);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (read_switch(options, argument)) continue;
    if (!argument.starts_with("-")) {
      if (!options.text.empty())
        throw Problem("one text is expected, got '" + options.text + "' and '" + argument + "'");
      options.text = argument;
      continue;
    }
    const auto field = std::find_if(known.begin(), known.end(), [&](auto& f) { return flag_of(f.name) == argument; });
    std::string* word = word_of(options, argument);
    if (field == known.end() && !word) throw Problem(argument + " is no flag; --help lists them");
    if (++i == arguments.size()) throw Problem(argument + " needs a value after it");
    if (word) {
      *word = arguments[i];
    } else {
      read(*field, arguments[i]);
    }
  }
  if (options.help) return options;
  if (options.text.empty()) throw Problem("a text file is expected, as in: train text.txt; --help lists the flags");
  if (options.run.empty()) throw Problem("--run must name a folder, got ''");
  if (options.device != "cpu" && options.device != "cuda") {
    throw Problem("--device must be cpu or cuda, got '" + options.device + "'");
  }
  // Whether torch's CUDA library is loaded; to look for GPUs here would take them from the processes that are forked.
  if (options.device == "cuda" && !c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    throw Problem("--device cuda needs a torchdion that was built with nvcc, and this one was not");
  }
  if (options.resume && options.overwrite) throw Problem("--resume and --overwrite exclude each other");
  return options;
}

void check(const Options& options) {
  const Recipe& recipe = options.recipe;
  if (const int64_t most = processes_that_fit(); options.ranks > most) {
    throw Problem("--ranks must be at most " + std::to_string(most) + ", for which there are cores and memory, got " +
                  std::to_string(options.ranks));
  }
  if (recipe.batch % options.ranks != 0) {
    throw Problem("--batch must be a multiple of --ranks, got " + std::to_string(recipe.batch) + " and " +
                  std::to_string(options.ranks));
  }
  if (recipe.d_model % (2 * recipe.heads) != 0) {
    throw Problem("--d-model must be a multiple of twice --heads, as rotary positions turn pairs, got " +
                  std::to_string(recipe.d_model) + " and " + std::to_string(recipe.heads) + " heads");
  }
}

void check_continues(Recipe recipe, Recipe saved) {
  const std::vector<Field> given = fields(recipe), kept = fields(saved);
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i].name == "steps" || number_of(given[i]) == number_of(kept[i])) continue;
    throw Problem(flag_of(given[i].name) + " is " + text_of(number_of(kept[i])) + " in the run to be resumed, got " +
                  text_of(number_of(given[i])));
  }
}

std::string help() {
  std::ostringstream text;
  text << "usage: train TEXT [flags]\n\nTrains a GPT on the bytes of a text file with torchdion::Dion.\n\n"
       << "  --run FOLDER               for checkpoints (runs/libtorch)\n"
       << "  --resume                   go on from the folder's checkpoint; its flags need not be repeated\n"
       << "  --device cpu|cuda          where to train; of many processes each takes a GPU in turn (cpu)\n"
       << "  --overwrite                replace the run that the folder holds\n";
  Options defaults;
  for (const Field& field : all_fields(defaults)) {
    std::string flag = "  " + flag_of(field.name) + " N";
    flag.resize(29, ' ');
    text << flag << field.meaning << " (" << text_of(number_of(field)) << ")\n";
  }
  return text.str();
}

}  // namespace gpt
