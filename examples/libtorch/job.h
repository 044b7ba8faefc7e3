// The processes of a run. Each computes the gradients of its share of every batch.
#pragma once

#include <c10/core/Device.h>
#include <torchdion/layout.h>

#include <functional>
#include <string>

namespace gpt {

class Job {
 public:
  // One process.
  explicit Job(at::DeviceType type);
  // One of `size` processes on this machine, which meet at a file; waits for the others. On CUDA each takes the GPU of
  // its number: over NCCL, where the program was built with it, all have one of their own, over gloo they may share.
  Job(int rank, int size, const std::string& meeting_place, at::DeviceType type);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool leads() const { return rank_ == 0; }  // prints and writes checkpoints
  at::Device device() const { return device_; }
  const torchdion::Axis& replicas() const { return replicas_; }

  // Over all processes, the same for each.
  double sum(double number) const;
  double largest(double number) const;

 private:
  int rank_ = 0, size_ = 1;
  at::Device device_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_, in_flight_;
  torchdion::Axis replicas_;
};

// Runs body in `count` processes, or in this one if it is the only one, and returns the first exit status that is
// not 0. Signals are passed on. When a process fails, the others are ended. Nothing that starts threads may have run
// before.
int in_processes(int count, at::DeviceType type, const std::function<int(const Job&)>& body);

}  // namespace gpt
