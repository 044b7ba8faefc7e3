// Lion and AdamW on CUDA: one launch for all tensors of a list that compute in the same type.
#include "linalg/cuda/operations.h"
#include "linalg/cuda/tensors.h"
#include "linalg/elementwise.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

namespace {

template <class Tensor>
Tensor listed(const ElementwiseLists& lists, std::size_t i) {
  Tensor tensor{};
  tensor.X = entries(lists.X[i]);
  tensor.G = entries(lists.G[i]);
  for (std::size_t k = 0; k < lists.states.size(); ++k) tensor.states[k] = entries(lists.states[k][i]);
  if (!lists.step.empty()) tensor.step = static_cast<double>(lists.step[i]);
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

// Of the tensors that compute in FP64, or in FP32.
template <class Program, class Hyperparameters>
void update(const ElementwiseLists& lists, const Hyperparameters& hyper, bool in_double) {
  using Tensor = typename Program::Tensor;
  std::vector<Tensor> tensors;
  int64_t blocks = 0, bytes = 0;
  for (std::size_t i = 0; i < lists.X.size(); ++i) {
    if ((lists.X[i].scalar_type() == at::kDouble) != in_double || lists.X[i].numel() == 0) continue;
    tensors.push_back(listed<Tensor>(lists, i));
    tensors.back().first_block = blocks;
    blocks += kernels::blocks_of(tensors.back().numel);
    bytes += moved_bytes(lists, i);
  }
  if (tensors.empty()) return;
  const c10::Device device = lists.X.front().device();
  const at::Tensor table = table_of(tensors.data(), tensors.size() * sizeof(Tensor), device);
  Program program{};
  program.tensors = static_cast<const Tensor*>(table.const_data_ptr());
  program.count = static_cast<int64_t>(tensors.size());
  program.lr = device_number(hyper.lr, lists.multipliers.lr);
  program.weight_decay = device_number(hyper.weight_decay, lists.multipliers.weight_decay);
  program.hyper = hyper;
  program.gradients = lists.rule;
  if (hyper.maximize) program.gradients.factor *= -1;
  program.of_list = {bytes};
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
