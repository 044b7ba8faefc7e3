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
const Words kOfMuon{"muon", "normuon", "dion2", "dion3", "dist_muon"};
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

std::string text_of(const std::string& word) { return word; }

std::string text_of(const Field& field) {
  return std::visit([](const auto* value) { return text_of(*value); }, field.value);
}

bool is_same(const Field& one, const Field& other) {
  return std::visit([&](auto* value) { return *value == *std::get<decltype(value)>(other.value); }, one.value);
}

// As in "dion, muon or adamw".
std::string listed(const Words& words) {
  std::string list = words.front();
  for (std::size_t i = 1; i < words.size(); ++i) list += (i + 1 < words.size() ? ", " : " or ") + words[i];
  return list;
}

std::string allowed(const Field& field) {
  if (const auto* words = std::get_if<Words>(&field.allowed)) return listed(*words);
  const auto& range = std::get<Range>(field.allowed);
  std::string words = std::holds_alternative<int64_t*>(field.value) ? "a whole number" : "a number";
  words += (range.lowest_is_allowed ? " of at least " : " above ") + text_of(range.lowest);
  return range.highest < kInfinity ? words + " and at most " + text_of(range.highest) : words;
}

template <class Number>
bool read(const std::string& text, const Field& field, Number& value) {
  const auto& range = std::get<Range>(field.allowed);
  Number number = value;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const auto real = static_cast<double>(number);
  const bool large_enough = range.lowest_is_allowed ? real >= range.lowest : real > range.lowest;
  if (error != std::errc() || rest != end || !std::isfinite(real) || !large_enough || real > range.highest) {
    return false;
  }
  value = number;
  return true;
}

bool read(const std::string& text, const Field& field, std::string& value) {
  const auto& words = std::get<Words>(field.allowed);
  value = text;
  return std::find(words.begin(), words.end(), text) != words.end();
}

void read(const std::string& text, const Field& field) {
  if (std::visit([&](auto* value) { return read(text, field, *value); }, field.value)) return;
  throw Problem(flag_of(field.name) + " must be " + allowed(field) + ", got '" + text + "'");
}

std::vector<Field> fields_of_session(Options& options) {
  return {
      {"device", &options.device, Words{"cpu", "cuda"}, "where to train; of many processes each takes a GPU in turn"},
      {"checkpoint_every", &options.checkpoint_every, Range{1, true, kLargestWhole}, "steps between checkpoints"},
      {"sample_length", &options.sample_length, Range{0, true, kLargestWhole},
       "bytes of text drawn at the end; 0: none"},
      {"ranks", &options.ranks, Range{1, true, kMostRanks}, "processes, each with its share of every batch"},
      {"threads", &options.threads, Range{0, true, 1024}, "threads of torch in each process; 0: of all cores together"},
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

}  // namespace

std::vector<Field> fields(Recipe& recipe) {
  return {
      {"layers", &recipe.layers, Range{1, true, 1000}, "blocks of the model"},
      {"d_model", &recipe.d_model, Range{2, true, 65536}, "width of the model"},
      {"heads", &recipe.heads, Range{1, true, 65536}, "attention heads"},
      {"context", &recipe.context, Range{1, true, 1048576}, "bytes in a window"},
      {"batch", &recipe.batch, Range{1, true, 1048576}, "windows in a step"},
      {"steps", &recipe.steps, Range{1, true, kLargestWhole}, "steps of the whole run"},
      {"optimizer", &recipe.optimizer, kOptimizers, "of the blocks' matrices; the others have Lion"},
      {"lr", &recipe.lr, Range{0, false, kInfinity}, "base learning rate; of lion, adamw and demo try 0.002"},
      {"rank_fraction",
       &recipe.rank_fraction,
       Range{0, false, 1},
       "Dion's rank over a matrix's smaller side",
       {"dion"}},
      {"nesterov",
       &recipe.nesterov,
       Words{"auto", "off", "on"},
       "momentum a step ahead; auto: of Muon, not of Dion",
       {"dion", "muon", "normuon", "dist_muon"}},
      {"residual",
       &recipe.residual,
       Words{"none", "scaled", "sign"},
       "how what Dion's rank leaves moves the weights too",
       {"dion"}},
      {"right_factor", &recipe.right_factor, Words{"normalized", "orthonormal"}, "what Dion takes of R", {"dion"}},
      {"error_feedback",
       &recipe.error_feedback,
       Words{"off", "on"},
       "whether Dion's momentum keeps what the rank leaves",
       {"dion"}},
      {"fraction",
       &recipe.fraction,
       Range{0, false, 1},
       "share of slices that Dion2 and Dion3 update",
       {"dion2", "dion3"}},
      {"delayed",
       &recipe.delayed,
       Words{"off", "on"},
       "replicas exchange beside the next step's passes",
       {"double_dion"}},
      {"newton_schulz", &recipe.newton_schulz, Words{"auto", "jordan", "polar_express", "gram"}, "Muon's iteration",
       kOfMuon},
      {"ns_steps", &recipe.ns_steps, Range{1, true, 99}, "how many of them", kOfMuon},
      {"weight_decay", &recipe.weight_decay, Range{0, true, kInfinity}, "on the blocks' matrices"},
      {"warmup", &recipe.warmup, Range{0, true, 1}, "share of the steps over which the rate rises"},
      {"decay", &recipe.decay, Range{0, true, 1}, "share of the steps over which it falls"},
      {"clip", &recipe.clip, Range{0, true, kInfinity}, "largest norm of the gradient; 0: no clipping"},
      {"validate_every", &recipe.validate_every, Range{1, true, kLargestWhole}, "steps between validations"},
      {"validation_windows", &recipe.validation_windows, Range{1, true, kLargestWhole}, "windows in a validation"},
      {"seed", &recipe.seed, Range{0, true, kLargestWhole}, "of weights, batches, sample and Dion"},
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
    if (field == known.end() && argument != "--run") throw Problem(argument + " is no flag; --help lists them");
    if (++i == arguments.size()) throw Problem(argument + " needs a value after it");
    if (field == known.end()) {
      options.run = arguments[i];
    } else {
      read(arguments[i], *field);
      options.given.push_back(field->name);
    }
  }
  if (options.help) return options;
  if (options.text.empty()) throw Problem("a text file is expected, as in: train text.txt; --help lists the flags");
  if (options.run.empty()) throw Problem("--run must name a folder, got ''");
  // Whether torch's CUDA library is loaded; to look for GPUs here would take them from the processes that are forked.
  if (options.device == "cuda" && !c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    throw Problem("--device cuda needs a torchdion that was built with nvcc, and this one was not");
  }
  if (options.resume && options.overwrite) throw Problem("--resume and --overwrite exclude each other");
  return options;
}

void check(Options options) {
  const Recipe& recipe = options.recipe;
  for (const Field& field : all_fields(options)) {
    const bool given = std::find(options.given.begin(), options.given.end(), field.name) != options.given.end();
    const Words& all = field.optimizers;
    if (given && !all.empty() && std::find(all.begin(), all.end(), recipe.optimizer) == all.end()) {
      throw Problem(flag_of(field.name) + " has no effect with --optimizer " + recipe.optimizer);
    }
  }
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
    if (given[i].name == "steps" || is_same(given[i], kept[i])) continue;
    throw Problem(flag_of(given[i].name) + " is " + text_of(kept[i]) + " in the run to be resumed, got " +
                  text_of(given[i]));
  }
}

std::string help() {
  std::ostringstream text;
  text << "usage: train TEXT [flags]\n\nTrains a GPT on the bytes of a text file with an optimizer of "
          "torchdion.\n\n"
       << "  --run FOLDER               for checkpoints (runs/libtorch)\n"
       << "  --resume                   go on from the folder's checkpoint; its recipe's flags need not be repeated\n"
       << "  --overwrite                replace the run that the folder holds\n";
  Options defaults;
  for (const Field& field : all_fields(defaults)) {
    const auto* words = std::get_if<Words>(&field.allowed);
    std::string flag = "  " + flag_of(field.name) + (words ? " WORD" : " N");
    flag.resize(29, ' ');
    text << flag << field.meaning << " (" << (words ? allowed(field) + "; " : "") << text_of(field) << ")\n";
  }
  return text.str();
}

}  // namespace gpt
