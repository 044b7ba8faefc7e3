// The processes of a run. Each computes the gradients of its share of every batch.
#pragma once

#include <torchdion/layout.h>

#include <functional>
#include <string>

namespace gpt {

class Job {
 public:
  Job() = default;  // one process
  // One of `size` processes on this machine, which meet at a file; waits for the others.
  Job(int rank, int size, const std::string& meeting_place);

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool leads() const { return rank_ == 0; }  // prints and writes checkpoints
  const torchdion::Axis& replicas() const { return replicas_; }

  // Over all processes, the same for each.
  double sum(double number) const;
  double largest(double number) const;

 private:
  int rank_ = 0, size_ = 1;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  torchdion::Axis replicas_;
};

// Runs body in `count` processes, or in this one if it is the only one, and returns the first exit status that is
// not 0. Signals are passed on. When a process fails, the others are ended. Nothing that starts threads may have run
// before.
int in_processes(int count, const std::function<int(const Job&)>& body);

}  // namespace gpt
