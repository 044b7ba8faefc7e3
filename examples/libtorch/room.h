#pragma once

#include <cstdint>

namespace gpt {

// How many processes this machine has cores and memory for: too many would take it along.
int64_t processes_that_fit();

}  // namespace gpt
