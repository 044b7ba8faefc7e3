// Process groups for programs without Python: LibTorch's own header for them needs those of gloo, which its wheel
// lacks.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace torchdion {

// How a group is made; see gloo_group().
struct GlooOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // of a collective, and of the meeting itself
  // The address or name of this machine that the other ranks reach: "127.0.0.1" where all are on it. Empty: that of its
  // own hostname.
  std::string hostname = {};
  // Under which c10d::resolve_process_group() finds the group, one of this process; empty: nowhere.
  std::string name = {};
};

// A group of `size` processes over gloo, for tensors on the CPU, by which those on GPUs go; the axes of a Layout take
// it. All ranks call it with the same store, of the types that torch/csrc/distributed/c10d has: FileStore on one
// machine, TCPStore on several.
//
//   auto store = c10::make_intrusive<c10d::FileStore>("/tmp/meeting", size);
//   torchdion::Axis axis(torchdion::gloo_group(store, rank, size, {.hostname = "127.0.0.1"}));
//
// Several groups of one store need a c10d::PrefixStore each. A program whose ranks are threads sets the environment
// variable TORCH_FR_BUFFER_SIZE=0 before it makes the first group, as c10d's flight recorder is not safe there, and
// gives each rank a TCPStore of its own (clone()). Throws c10::Error: a rank or size that is none, ranks that do not
// come within the time.
c10::intrusive_ptr<c10d::ProcessGroup> gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                  const GlooOptions& options = {});

}  // namespace torchdion
