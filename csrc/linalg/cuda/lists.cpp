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

// Of the tensors that compute in FP64, or in FP32. Where they lie is uploaded when it has changed.
template <class Program>
void update(const ElementwiseLists& lists, const typename Program::TakenRule::Hyperparameters& hyper, bool in_double) {
  using Tensor = typename Program::Tensor;
  using Rule = typename Program::TakenRule;
  std::vector<Tensor> tensors;
  std::vector<double> corrections;  // of each, where the host knows its steps
  Program program{};
  int64_t blocks = 0;
  for (std::size_t i = 0; i < lists.X.size(); ++i) {
    if ((lists.X[i].scalar_type() == at::kDouble) != in_double || lists.X[i].numel() == 0) continue;
    tensors.push_back(listed<Tensor>(lists, i));
    tensors.back().first_block = blocks;
    blocks += Program::blocks_of(tensors.back().numel);
    program.of_list.bytes += moved_bytes(lists, i);
    if constexpr (Rule::corrections > 0) {
      for (int c = 0; c < Rule::corrections && lists.device_step.empty(); ++c) {
        corrections.push_back(Rule::correction(hyper, static_cast<double>(lists.step[i]), c));
      }
    }
  }
  if (tensors.empty()) return;
  const c10::Device device = lists.X.front().device();
  static_assert(sizeof(Tensor) % sizeof(uint64_t) == 0);
  std::vector<uint64_t> words(tensors.size() * sizeof(Tensor) / sizeof(uint64_t));
  std::memcpy(words.data(), tensors.data(), tensors.size() * sizeof(Tensor));
  const at::Tensor table = kept_table_of(words, device);
  at::Tensor table_of_corrections;
  program.tensors = static_cast<const Tensor*>(table.const_data_ptr());
  program.count = static_cast<int64_t>(tensors.size());
  program.rates = device_rates(lists.factors);
  program.hyper = hyper;
  program.gradients = lists.rule;
  program.decay = lists.decay;
  if (!corrections.empty()) {
    const auto second = corrections.begin() + Rule::corrections;
    if (std::equal(second, corrections.end(), corrections.begin())) {
      std::copy(corrections.begin(), second, program.corrections);
    } else {
      table_of_corrections = table_of(corrections.data(), corrections.size() * sizeof(double), device);
      program.corrections_of_each = static_cast<const double*>(table_of_corrections.const_data_ptr());
    }
  }
  kernels::update_list(program, blocks, stream_of(device));
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
