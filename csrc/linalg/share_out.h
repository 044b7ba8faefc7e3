// The loop over matrices that need nothing of one another, for what is made of many operations: a matrix that goes
// through all of them on one thread stays in its cache, and no thread waits for another after each.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

namespace torchdion::linalg {

// Matrices `begin` to `end`, to be worked on so many at a time.
struct Share {
  int64_t begin, end, at_once;
};

// What each of the matrices asks for.
struct Need {
  int64_t bytes, operations;
};

// Calls body(share) for shares that cover `count` matrices once: on a CPU in parallel, one for each thread, but one
// for all threads together of large matrices that are too few for that; on a GPU one for all. The body may be called
// on any thread, in the modes of torch that the caller is in.
void share_out(c10::Device device, int64_t count, const Need& need, const std::function<void(const Share&)>& body);

}  // namespace torchdion::linalg
