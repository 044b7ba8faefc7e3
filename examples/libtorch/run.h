// A run: training steps to the last one, with validations and checkpoints where they are due.
#pragma once

#include <string>
#include <vector>

namespace gpt {

// Trains as `arguments` say and returns the exit status. `program` is how it was called.
int run(const std::string& program, const std::vector<std::string>& arguments);

}  // namespace gpt
