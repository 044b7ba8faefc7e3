// What a step asks of a GPU: every launch, product and allocation, listed while a Recorder lives. Kernel files include
// this: no torch header.
#pragma once

#include <cstdint>
#include <string>
#include <typeinfo>
#include <vector>

namespace torchdion::linalg {

// The bytes that an algorithm must read from memory and write to it, and the arithmetic that it must do. What a cache
// holds meanwhile counts once, pointers and single numbers do not count.
struct Work {
  int64_t bytes = 0, operations = 0;
};

// `count` products of an m×k and a k×n matrix. Of what is no product: zeros.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0, count = 0;
  bool by_pointers = false;  // else the matrices of an operand lie at equal distances
};

// Equal launches.
struct Launches {
  std::string name;                 // as a profiler has it, without namespaces
  int64_t blocks = 0, threads = 0;  // of each; 0 where cuBLAS or torch chooses them
  Work work = {};                   // of each
  ProductShape product = {};
  int64_t count = 1;
};

struct Allocations {
  int64_t count = 0, bytes = 0;
  int64_t live = 0, peak = 0;  // bytes, beside what there was before
};

// Records what its thread does, from its construction to its destruction. Recorders may be nested: each lists what is
// done while it lives.
class Recorder {
 public:
  Recorder();
  Recorder(const Recorder&) = delete;
  ~Recorder();

  const std::vector<Launches>& launches() const { return launches_; }  // in the order of the first of each
  const Allocations& allocations() const { return allocations_; }

 private:
  friend void record(const Launches& launched);
  friend void record_allocation(int64_t bytes);

  Recorder* outer_;
  std::vector<Launches> launches_;
  Allocations allocations_;
};

// Whether there is a recorder on this thread. What follows does nothing without one.
bool is_recording() noexcept;

void record(const Launches& launched);
void record_allocation(int64_t bytes);  // below zero: memory that was freed

// A kernel's name from its type.
std::string name_of(const std::type_info& program);

}  // namespace torchdion::linalg
