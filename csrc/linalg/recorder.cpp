#include "linalg/recorder.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <regex>
#include <tuple>

namespace torchdion::linalg {

namespace {

thread_local Recorder* innermost = nullptr;

bool are_equal(const Launches& a, const Launches& b) {
  const auto members = [](const Launches& each) {
    const ProductShape& product = each.product;
    return std::tie(each.name, each.blocks, each.threads, each.work.bytes, each.work.operations, product.m, product.n,
                    product.k, product.count, product.by_pointers);
  };
  return members(a) == members(b);
}

}  // namespace

Recorder::Recorder() : outer_(innermost) { innermost = this; }

Recorder::~Recorder() { innermost = outer_; }

bool is_recording() noexcept { return innermost != nullptr; }

void record(const Launches& launched) {
  for (Recorder* recorder = innermost; recorder; recorder = recorder->outer_) {
    std::vector<Launches>& all = recorder->launches_;
    const auto is_equal = [&](const Launches& known) { return are_equal(known, launched); };
    const auto known = std::find_if(all.begin(), all.end(), is_equal);
    if (known == all.end()) {
      all.push_back(launched);
    } else {
      known->count += launched.count;
    }
  }
}

void record_allocation(int64_t bytes) {
  for (Recorder* recorder = innermost; recorder; recorder = recorder->outer_) {
    Allocations& all = recorder->allocations_;
    all.live += bytes;
    all.peak = std::max(all.peak, all.live);
    if (bytes <= 0) continue;
    all.bytes += bytes;
    ++all.count;
  }
}

std::string name_of(const std::type_info& program) {
  static const std::regex namespaces("\\w+::");
  return std::regex_replace(c10::demangle(program.name()), namespaces, "");
}

}  // namespace torchdion::linalg
