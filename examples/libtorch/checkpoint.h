// A run's checkpoints: FOLDER/checkpoint-00000200.pt, each there whole or not at all.
#pragma once

#include <ATen/core/Dict.h>

#include <cstdint>
#include <optional>
#include <string>

#include "options.h"

namespace gpt {

// Where the newest checkpoint of a folder lies.
std::optional<std::string> newest_checkpoint(const std::string& folder);

// Adds the recipe and the text's fingerprint to the state after `step` steps, writes it, and removes older checkpoints.
void save_checkpoint(const std::string& folder, int64_t step, c10::impl::GenericDict state, Recipe recipe,
                     int64_t fingerprint);

// Throws Problem for a file that is damaged or not of this program.
c10::impl::GenericDict load_checkpoint(const std::string& path);

Recipe recipe_of(const c10::impl::GenericDict& state);
int64_t fingerprint_of(const c10::impl::GenericDict& state);

// Makes the folder, and removes what a killed process was writing; everything older goes too if `afresh`.
void prepare_folder(const std::string& folder, bool afresh);

}  // namespace gpt
