#include "job.h"

#include <ATen/ops/full.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torchdion/process_group.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <iostream>

#include "options.h"
#include "problem.h"

namespace gpt {

namespace {

#ifdef USE_C10D_NCCL
constexpr bool kHasNccl = true;
#else
constexpr bool kHasNccl = false;
#endif

// Makes the GPU of this number the process' own.
at::Device device_of(at::DeviceType type, int rank, int size) {
  if (type == at::kCPU) return at::kCPU;
  const c10::impl::VirtualGuardImpl gpus(type);
  const int found = gpus.deviceCount(), needed = kHasNccl ? size : 1;
  if (found < needed) {
    throw Problem("--device cuda: " + std::to_string(size) + (size == 1 ? " process needs " : " processes need ") +
                  std::to_string(needed) + (needed == 1 ? " GPU, and " : " GPUs, and ") + std::to_string(found) +
                  " were found");
  }
  const at::Device device(type, static_cast<at::DeviceIndex>(rank % found));
  gpus.setDevice(device);
  return device;
}

// gloo moves what lies on the CPU, and without NCCL what lies on CUDA too.
c10::intrusive_ptr<c10d::ProcessGroup> group_of(int rank, int size, const c10::intrusive_ptr<c10d::Store>& store,
                                                at::Device device) {
  auto group = torchdion::gloo_group(store, rank, size, {.hostname = "127.0.0.1"});
  if (device.is_cuda()) {
#ifdef USE_C10D_NCCL
    const auto own = c10::make_intrusive<c10d::PrefixStore>("nccl", store);
    group->setBackend(at::kCUDA, c10d::ProcessGroup::BackendType::NCCL,
                      c10::make_intrusive<c10d::ProcessGroupNCCL>(own, rank, size));
#else
    group->setBackend(at::kCUDA, c10d::ProcessGroup::BackendType::GLOO, group->getBackend(at::kCPU));
#endif
  }
  return group;
}

double all_reduce(double number, c10d::ReduceOp::RedOpType operation, c10d::ProcessGroup& group) {
  std::vector<at::Tensor> tensors{at::full({1}, number, at::kDouble)};
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  group.allreduce(tensors, options)->wait();
  return tensors[0].item<double>();
}

std::array<pid_t, kMostRanks> children;  // 0: none, or ended
volatile std::sig_atomic_t passed = 0;   // the signal that came last and went to the children

// All stop first: one that went on while another ended would find its peer gone, and say so.
void send_to_all(int signal) {
  for (const int each : {SIGSTOP, signal, SIGCONT}) {
    for (const pid_t child : children) {
      if (child > 0) kill(child, each);
    }
  }
}

void pass_on(int signal) {
  passed = signal;
  send_to_all(signal);
}

void handle_signals(void (*handler)(int)) {
  std::signal(SIGINT, handler);
  std::signal(SIGTERM, handler);
}

// While it lives, signals wait: one that came while children are made would reach some of them only.
class Held {
 public:
  Held() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, &before_);
  }
  ~Held() { release(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  void release() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// A file's name in a folder of its own, which goes with the object.
class MeetingPlace {
 public:
  MeetingPlace() {
    std::string name = (std::filesystem::temp_directory_path() / "train-XXXXXX").string();
    if (!mkdtemp(name.data())) throw Problem(name + " cannot be made", Fault::run);
    folder_ = name;
  }
  ~MeetingPlace() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;

  std::string file() const { return (folder_ / "store").string(); }

 private:
  std::filesystem::path folder_;
};

// In a child: the exit status of its part. A Problem is that of all; the leader says it.
int status_of(int rank, int count, const std::string& meeting_place, at::DeviceType type,
              const std::function<int(const Job&)>& body) {
  return guarded([&] {
    try {
      return body(Job(rank, count, meeting_place, type));
    } catch (const Problem&) {
      if (rank == 0) throw;
      return 0;
    }
  });
}

// Waits for all children. Returns the leader's status, or that of the first to fail, after which it ends the others.
int wait_for_children(int count) {
  int first_failure = 0;
  for (int ended = 0; ended < count;) {
    int how = 0;
    const pid_t child = waitpid(-1, &how, 0);
    if (child <= 0) continue;  // interrupted by a signal
    const auto place = std::find(children.begin(), children.end(), child);
    *place = 0;
    ++ended;
    const int status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    if (status == 0 || first_failure != 0) continue;
    first_failure = status;
    if (WIFSIGNALED(how) && WTERMSIG(how) == passed) {
      std::cerr << "train: interrupted" << std::endl;  // before the first step, or twice
    } else if (WIFSIGNALED(how)) {
      std::cerr << "train: process " << place - children.begin() << " was ended by signal " << WTERMSIG(how)
                << std::endl;
    }
    send_to_all(SIGKILL);
  }
  return first_failure;
}

}  // namespace

Job::Job(at::DeviceType type) : device_(device_of(type, 0, 1)) {}

Job::Job(int rank, int size, const std::string& meeting_place, at::DeviceType type)
    : rank_(rank), size_(size), device_(device_of(type, rank, size)) {
  const auto store = c10::make_intrusive<c10d::FileStore>(meeting_place, size);
  group_ = group_of(rank, size, store, device_);
  in_flight_ = group_of(rank, size, c10::make_intrusive<c10d::PrefixStore>("in flight", store), device_);
  replicas_ = torchdion::Axis(group_, {.name = "replicas"});
  replicas_.set_in_flight_group(in_flight_);
}

Job::~Job() {
#ifdef USE_C10D_NCCL
  if (!group_ || !device_.is_cuda()) return;
  for (const auto& group : {group_, in_flight_}) group->getBackend(at::kCUDA)->shutdown();  // else it warns
#endif
}

double Job::sum(double number) const { return group_ ? all_reduce(number, c10d::ReduceOp::SUM, *group_) : number; }

double Job::largest(double number) const { return group_ ? all_reduce(number, c10d::ReduceOp::MAX, *group_) : number; }

int in_processes(int count, at::DeviceType type, const std::function<int(const Job&)>& body) {
  if (count == 1) return body(Job(type));
  const MeetingPlace meeting_place;
  const pid_t parent = getpid();
  Held signals;
  handle_signals(pass_on);
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      send_to_all(SIGKILL);
      throw Problem("process " + std::to_string(rank) + " cannot be started", Fault::run);
    }
    if (child == 0) {
      setpgid(0, 0);  // a terminal's Ctrl-C comes by the parent alone
      handle_signals(SIG_DFL);
      signals.release();
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(static_cast<int>(Fault::run));
      const int status = status_of(rank, count, meeting_place.file(), type, body);
      _exit(status);
    }
    children[rank] = child;
  }
  signals.release();
  const int status = wait_for_children(count);
  handle_signals(SIG_DFL);
  return status;
}

}  // namespace gpt
