// The command line.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace gpt {

constexpr int64_t kVocabulary = 256;  // bytes
constexpr int kMostRanks = 1024;

// All that torchdion has.
inline const std::vector<std::string> kOptimizers{"dion", "double_dion", "muon",  "normuon",   "dion2",     "dion3",
                                                  "demo", "lion",        "adamw", "dist_muon", "dist_adamw"};

// What fixes the losses of a run. Checkpoints hold it, and a resumed run keeps it.
struct Recipe {
  int64_t layers = 4;
  int64_t d_model = 128;
  int64_t heads = 4;
  int64_t context = 256;  // bytes in a window
  int64_t batch = 32;     // windows in a step
  int64_t steps = 200;
  std::string optimizer = "dion";  // a name in kOptimizers
  double lr = 0.02;
  std::string nesterov = "auto";            // Dion's and Muon's: the optimizer's own, "on" or "off"
  double rank_fraction = 1;                 // Dion's
  std::string residual = "none";            // Dion's, "scaled" or "sign"
  std::string right_factor = "normalized";  // Dion's, or "orthonormal"
  std::string error_feedback = "on";        // Dion's, or "off"
  double fraction = 0.25;                   // Dion2's and Dion3's
  std::string delayed = "off";              // Double Dion's, or "on"
  std::string newton_schulz = "auto";       // Muon's and its siblings', as ns_steps
  int64_t ns_steps = 5;
  double weight_decay = 0.01;
  double warmup = 0.05;
  double decay = 0.3;
  double clip = 1;  // largest norm of the gradient; 0: no clipping
  int64_t validate_every = 50;
  int64_t validation_windows = 256;
  int64_t seed = 0;
};

// The numbers that a flag takes.
struct Range {
  double lowest;
  bool lowest_is_allowed;
  double highest;
};

using Words = std::vector<std::string>;

// A number, or a word of a few, of the command line.
struct Field {
  std::string name;  // d_model, of the flag --d-model
  std::variant<int64_t*, double*, std::string*> value;
  std::variant<Range, Words> allowed;
  std::string meaning;
  Words optimizers = {};  // those that have it; empty: all have
};

std::vector<Field> fields(Recipe& recipe);

struct Options {
  Recipe recipe;
  std::string text;
  std::string run = "runs/libtorch";
  std::string device = "cpu";  // or "cuda"
  int64_t checkpoint_every = 100;
  int64_t sample_length = 300;  // bytes
  int64_t threads = 0;          // 0: as torch chooses
  int64_t ranks = 1;            // processes
  bool resume = false;
  bool overwrite = false;
  bool help = false;
  std::vector<std::string> given = {};  // names of the fields that the command line names
};

// Reads the arguments over `recipe`. Throws Problem for one that is unknown, out of range or has no value.
Options parse(const std::vector<std::string>& arguments, const Recipe& recipe = {});

// Throws Problem where one field does not fit another.
void check(Options options);

// Throws Problem where `recipe` would not continue the run of `saved`; the number of steps may change.
void check_continues(Recipe recipe, Recipe saved);

std::string help();

}  // namespace gpt
