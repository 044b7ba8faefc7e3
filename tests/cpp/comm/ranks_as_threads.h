// A process group whose ranks are threads of the test: a c10d::Backend of our own, so that what reaches it can be
// looked at, delayed and made to fail. Sums go in rank order.
#pragma once

#include <torchdion/layout.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace torchdion::comm {

// Where the ranks meet: the nth collective of one is the nth of all.
class Meeting {
 public:
  explicit Meeting(int size) : size(size), sent(size), logs(size) {}

  const int size;
  std::vector<int64_t> sent;  // per rank, the bytes that its collectives give to others, counted from their tensors
  std::vector<std::vector<std::string>> logs;  // per rank, "name elements" of each collective that it issued
  int fails_at = -1;                           // the wait for this collective throws
  std::function<void(int rank, int index)> delay = [](int, int) {};  // before a rank waits

  // Brings a rank's input to its next collective, whose number it returns: a flat tensor, or what of it each rank gets.
  int bring(int rank, const std::string& name, const at::Tensor& input, const std::vector<int64_t>& splits) {
    const std::lock_guard lock(mutex_);
    const int index = static_cast<int>(logs[rank].size());
    logs[rank].push_back(name + " " + std::to_string(input.numel()));
    inputs_[index][rank] = input.clone().flatten().split_with_sizes(splits);
    all_here_.notify_all();
    return index;
  }

  // The inputs of all ranks, once they are here.
  std::vector<std::vector<at::Tensor>> wait(int rank, int index) {
    delay(rank, index);
    if (index == fails_at) throw std::runtime_error("connection lost");
    std::unique_lock lock(mutex_);
    const bool complete = all_here_.wait_for(lock, std::chrono::seconds(30),
                                             [&] { return inputs_[index].size() == static_cast<std::size_t>(size); });
    if (!complete) throw std::runtime_error("a rank did not come to collective " + std::to_string(index));
    std::vector<std::vector<at::Tensor>> inputs;
    for (const auto& [from, input] : inputs_[index]) inputs.push_back(input);
    return inputs;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::map<int, std::map<int, std::vector<at::Tensor>>> inputs_;  // by collective and rank
};

class MeetingWork : public c10d::Work {
 public:
  explicit MeetingWork(std::function<void()> finish) : finish_(std::move(finish)) {}
  bool wait(std::chrono::milliseconds) override {
    finish_();
    return true;
  }

 private:
  std::function<void()> finish_;  // holds raw pointers: who awaits must keep the tensors alive
};

class MeetingBackend : public c10d::Backend {
 public:
  MeetingBackend(Meeting* meeting, int rank) : Backend(rank, meeting->size), meeting_(meeting) {}
  const std::string getBackendName() const override { return "meeting"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return start("all_reduce", tensors.at(0), tensors.at(0), {},
                 options.reduceOp == c10d::ReduceOp::MAX ? largest : sum);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const auto root = static_cast<std::size_t>(options.rootRank);
    return start(
        "broadcast", tensors.at(0), tensors.at(0), {tensors.at(0).numel()},
        [root](const Inputs& inputs) { return inputs[root][0]; }, options.rootRank == getRank());
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    return start("all_gather", output, input, {}, [](const Inputs& inputs) { return at::cat(part(inputs, 0)); });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions&) override {
    return start("reduce_scatter", output, input, {}, [rank = getRank()](const Inputs& inputs) {
      return sum(inputs).chunk(static_cast<int64_t>(inputs.size()))[rank];
    });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& received,
                                               std::vector<int64_t>& sent, const c10d::AllToAllOptions&) override {
    // Backends count splits along the first dimension.
    TORCH_CHECK(total(sent) == input.size(0) && total(received) == output.size(0), "splits of another tensor");
    return start("all_to_all", output, input, sent, [rank = getRank(), received](const Inputs& inputs) {
      const std::vector<at::Tensor> parts = part(inputs, rank);
      for (std::size_t i = 0; i < parts.size(); ++i) TORCH_CHECK(parts[i].numel() == received[i], "unequal splits");
      return at::cat(parts);
    });
  }

 private:
  using Inputs = std::vector<std::vector<at::Tensor>>;

  static std::vector<at::Tensor> part(const Inputs& inputs, int index) {
    std::vector<at::Tensor> parts;
    for (const std::vector<at::Tensor>& input : inputs) parts.push_back(input[index]);
    return parts;
  }
  static int64_t total(const std::vector<int64_t>& splits) {
    return std::accumulate(splits.begin(), splits.end(), int64_t{0});
  }
  static at::Tensor largest(const Inputs& inputs) { return at::stack(part(inputs, 0)).amax(0); }
  static at::Tensor sum(const Inputs& inputs) { return at::stack(part(inputs, 0)).sum(0); }

  // What a ring sends; of an all-to-all, all but what a rank keeps; of a broadcast, what others have of the root.
  static int64_t sent_bytes(const std::string& name, const at::Tensor& input, const std::vector<int64_t>& splits,
                            int rank, int size, bool is_root) {
    const int64_t bytes = static_cast<int64_t>(input.nbytes());
    if (name == "all_reduce") return 2 * (bytes * (size - 1) / size);
    if (name == "all_gather") return bytes * (size - 1);
    if (name == "reduce_scatter") return bytes * (size - 1) / size;
    if (name == "broadcast") return is_root ? bytes * (size - 1) : 0;
    return bytes - splits.at(rank) * static_cast<int64_t>(input.element_size());
  }

  c10::intrusive_ptr<c10d::Work> start(const char* name, const at::Tensor& output, const at::Tensor& input,
                                       std::vector<int64_t> splits, std::function<at::Tensor(const Inputs&)> combine,
                                       bool is_root = true) {
    TORCH_CHECK(output.is_contiguous() && input.is_contiguous(), name, " of a tensor that is not contiguous");
    if (splits.empty()) splits = {input.numel()};
    const int rank = getRank(), index = meeting_->bring(rank, name, input, splits);
    meeting_->sent[rank] += sent_bytes(name, input, splits, rank, getSize(), is_root);
    void* target = output.data_ptr();
    const int64_t numel = output.numel();
    const at::TensorOptions options = output.options();
    return c10::make_intrusive<MeetingWork>([=, meeting = meeting_] {
      const at::Tensor result = combine(meeting->wait(rank, index));
      TORCH_CHECK(result.numel() == numel, name, " of ", result.numel(), " elements into ", numel);
      if (numel > 0) at::from_blob(target, {numel}, options).copy_(result);
    });
  }

  Meeting* meeting_;
};

// The group moves tensors on such devices.
inline Axis axis_of(Meeting* meeting, int rank, const AxisOptions& options = {},
                    c10::DeviceType moved = c10::DeviceType::CPU) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), rank, meeting->size);
  group->setBackend(moved, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<MeetingBackend>(meeting, rank));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return Axis(group, options);
}

// Runs body(axis) on a thread for each rank, and rethrows the exception of the lowest rank that had one.
inline void on_every_rank(Meeting* meeting, const std::function<void(Axis)>& body) {
  std::vector<std::exception_ptr> errors(meeting->size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < meeting->size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(axis_of(meeting, rank));
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace torchdion::comm
