#include "room.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>

namespace gpt {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kBytesOfAProcess = 200 << 20;  // of its own, with a small model
constexpr int64_t kProcessesOfACore = 16;        // beyond it they wait for each other at every collective

// The numbers of a file of lines such as "MemAvailable: 3000 kB".
std::map<std::string, int64_t> numbers_in(const fs::path& path) {
  std::ifstream file(path);
  std::map<std::string, int64_t> numbers;
  std::string name, rest;
  for (int64_t number = 0; file >> name >> number; std::getline(file, rest)) numbers[name] = number;
  return numbers;
}

// What the control group may still take: its limit without what is used, of which cached files can be given up.
int64_t left_in_group(const fs::path& folder) {
  int64_t limit = 0, used = 0;
  if (!(std::ifstream(folder / "memory.max") >> limit)) return std::numeric_limits<int64_t>::max();  // "max", or none
  std::ifstream(folder / "memory.current") >> used;
  const std::map<std::string, int64_t> statistics = numbers_in(folder / "memory.stat");
  const auto of = [&](const char* name) { return statistics.contains(name) ? statistics.at(name) : 0; };
  return std::max<int64_t>(0, limit - used + of("active_file") + of("inactive_file"));
}

// What the kernel can give without swapping, and no more than this process's control groups (of version 2) allow.
int64_t free_bytes() {
  const std::map<std::string, int64_t> memory = numbers_in("/proc/meminfo");
  int64_t free = std::numeric_limits<int64_t>::max();
  if (memory.contains("MemAvailable:")) free = memory.at("MemAvailable:") * 1024;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;
    const fs::path base = "/sys/fs/cgroup";
    fs::path folder = base / line.substr(4);
    for (auto depth = std::distance(folder.begin(), folder.end()); depth >= std::distance(base.begin(), base.end());
         --depth, folder = folder.parent_path()) {
      free = std::min(free, left_in_group(folder));
    }
  }
  return free;
}

}  // namespace

int64_t processes_that_fit() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  const int64_t by_cores = std::max(1, CPU_COUNT(&cores)) * kProcessesOfACore;
  return std::max<int64_t>(1, std::min(by_cores, free_bytes() / kBytesOfAProcess));
}

}  // namespace gpt
