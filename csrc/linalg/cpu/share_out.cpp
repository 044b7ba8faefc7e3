#include "linalg/share_out.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <algorithm>

#include "linalg/cpu/operations.h"

namespace torchdion::linalg::cpu {

namespace {

// Floating-point operations worth the start of a thread, and so many that the threads had better work on a matrix
// together than wait for the one that has it.
constexpr int64_t kFlopsOfThread = 2'000'000, kFlopsTogether = 50'000'000;

constexpr int64_t kCachedBytes = 1 << 20;  // of the matrices that a thread works on at a time

}  // namespace

void Operations::share_out(c10::Device /*device*/, int64_t count, const Need& need,
                           const std::function<void(const Share&)>& body) {
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t together = need.operations >= kFlopsTogether ? count % threads : 0, apart = count - together;
  const int64_t at_once = std::max<int64_t>(1, kCachedBytes / std::max<int64_t>(1, need.bytes));
  const int64_t grain = kFlopsOfThread / std::max<int64_t>(1, need.operations) + 1;
  const at::ThreadLocalState modes;  // which torch does not take along to its threads
  at::parallel_for(0, apart, grain, [&](int64_t begin, int64_t end) {
    const at::ThreadLocalStateGuard guard(modes);
    body({begin, end, at_once});
  });
  if (together > 0) body({apart, count, together});
}

}  // namespace torchdion::linalg::cpu
