#include "room.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace gpt {

namespace {

constexpr int64_t kKilobytesOfAProcess = 200 << 10;  // of its own, with a small model
constexpr int64_t kProcessesOfACore = 16;            // beyond it they wait for each other at every collective

// What the kernel can give without swapping.
int64_t free_kilobytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, rest;
  for (int64_t number = 0; file >> name >> number; std::getline(file, rest)) {
    if (name == "MemAvailable:") return number;
  }
  return std::numeric_limits<int64_t>::max();
}

}  // namespace

int64_t processes_that_fit() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  const int64_t by_cores = std::max(1, CPU_COUNT(&cores)) * kProcessesOfACore;
  return std::max<int64_t>(1, std::min(by_cores, free_kilobytes() / kKilobytesOfAProcess));
}

}  // namespace gpt
