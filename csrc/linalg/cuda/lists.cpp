// Lion and AdamW on CUDA: one launch for all tensors of a list that compute in the same type.
#include <algorithm>
#include <cstring>

#include "linalg/cuda/operations.h"
#include "linalg/cuda/tensors.h"
#include "linalg/elementwise.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

namespace {

template <class Tensor>
Tensor listed(const ElementwiseLists& lists, std::size_t i) {
  Tensor tensor{};
  const auto add = [&](int place, const at::Tensor& operand) {
    const Entries of_operand = entries(operand);
    tensor.data[place] = of_operand.data;
    tensor.storage[place] = of_operand.storage;
  };
  add(Tensor::kX, lists.X[i]);
  add(Tensor::kG, lists.G[i]);
  for (std::size_t k = 0; k < lists.states.size(); ++k) add(Tensor::kStates + static_cast<int>(k), lists.states[k][i]);
  if (!lists.device_step.empty()) tensor.steps_before = lists.device_step[i];
  tensor.numel = lists.X[i].numel();
  return tensor;
}

// The gradient is read, the parameter and its states are read and written.
int64_t moved_bytes(const ElementwiseLists& lists, std::size_t i) {
  std::size_t bytes = lists.G[i].nbytes() + 2 * lists.X[i].nbytes();
  for (const std::vector<at::Tensor>& state : lists.states) bytes += 2 * state[i].nbytes();
  return static_cast<int64_t>(bytes);
}

template <class T>
std::vector<uint64_t> words_of(const std::vector<T>& all) {
  static_assert(sizeof(T) % sizeof(uint64_t) == 0);
  std::vector<uint64_t> words(all.size() * sizeof(T) / sizeof(uint64_t));
  std::memcpy(words.data(), all.data(), all.size() * sizeof(T));
  return words;
}

// What a program works on: some tensors of the lists, in the order of its blocks.
template <class Program>
struct Worked {
  using Tensor = typename Program::Tensor;
  using Rule = typename Program::TakenRule;

  std::vector<Tensor> tensors;
  std::vector<double> corrections;  // of each, where the host knows its steps
  int64_t blocks = 0, bytes = 0;

  void add(const ElementwiseLists& lists, const typename Rule::Hyperparameters& hyper, std::size_t i) {
    tensors.push_back(listed<Tensor>(lists, i));
    tensors.back().first_block = blocks;
    blocks += Program::blocks_of(tensors.back().numel);
    bytes += moved_bytes(lists, i);
    if constexpr (Rule::corrections > 0) {
      if (!lists.device_step.empty()) return;
      for (int c = 0; c < Rule::corrections; ++c) {
        corrections.push_back(Rule::correction(hyper, static_cast<double>(lists.step[i]), c));
      }
    }
  }

  bool are_corrected_alike() const {
    for (std::size_t i = Rule::corrections; i < corrections.size(); ++i) {
      if (corrections[i] != corrections[i - Rule::corrections]) return false;
    }
    return true;
  }
};

// Of the tensors that compute in FP64, or in FP32. Where they lie is uploaded when it has changed.
template <class Program>
void update(const ElementwiseLists& lists, const typename Program::TakenRule::Hyperparameters& hyper, bool in_double) {
  Worked<Program> worked;
  for (std::size_t i = 0; i < lists.X.size(); ++i) {
    if ((lists.X[i].scalar_type() == at::kDouble) == in_double && lists.X[i].numel() > 0) worked.add(lists, hyper, i);
  }
  if (worked.tensors.empty()) return;
  const c10::Device device = lists.X.front().device();
  const at::Tensor tensors = kept_table_of(words_of(worked.tensors), device);
  at::Tensor corrections;
  Program program{};
  program.tensors = static_cast<const typename Program::Tensor*>(tensors.const_data_ptr());
  program.count = static_cast<int64_t>(worked.tensors.size());
  program.rates = device_rates(lists.factors);
  program.hyper = hyper;
  program.gradients = lists.rule;
  program.decay = lists.decay;
  program.of_list = {worked.bytes};
  if (!worked.are_corrected_alike()) {
    corrections = table_of(worked.corrections.data(), worked.corrections.size() * sizeof(double), device);
    program.corrections_of_each = static_cast<const double*>(corrections.const_data_ptr());
  } else if (!worked.corrections.empty()) {
    std::copy_n(worked.corrections.begin(), Program::TakenRule::corrections, program.corrections);
  }
  kernels::update_list(program, worked.blocks, stream_of(device));
}

template <template <class> class Program, class Hyperparameters>
void update_all(const ElementwiseLists& lists, const Hyperparameters& hyper) {
  update<Program<float>>(lists, hyper, false);
  update<Program<double>>(lists, hyper, true);
}

}  // namespace

void Operations::lion_(const ElementwiseLists& lists, const LionHyperparameters& hyper) {
  update_all<Lion>(lists, hyper);
}

void Operations::adamw_(const ElementwiseLists& lists, const AdamWHyperparameters& hyper) {
  update_all<AdamW>(lists, hyper);
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
