// Lion and AdamW on CUDA: one launch for all tensors of a list that compute in the same type.
#include "linalg/cuda/operations.h"
#include "linalg/cuda/tensors.h"
#include "linalg/elementwise.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

namespace {

ListedTensor listed(const ElementwiseLists& lists, std::size_t i) {
  ListedTensor tensor{};
  tensor.X = entries(lists.X[i]);
  tensor.G = entries(lists.G[i]);
  tensor.M = entries(lists.M[i]);
  if (!lists.V.empty()) tensor.V = entries(lists.V[i]);
  if (!lists.step.empty()) tensor.step = static_cast<double>(lists.step[i]);
  if (!lists.device_step.empty()) tensor.steps_before = lists.device_step[i];
  tensor.numel = lists.X[i].numel();
  return tensor;
}

// The gradient is read, the parameter and its state are read and written.
int64_t moved_bytes(const ElementwiseLists& lists, std::size_t i) {
  std::size_t bytes = lists.G[i].nbytes() + 2 * (lists.X[i].nbytes() + lists.M[i].nbytes());
  if (!lists.V.empty()) bytes += 2 * lists.V[i].nbytes();
  return static_cast<int64_t>(bytes);
}

// Calls start(update, blocks, stream) with the tensors that compute in FP64, or in FP32, where there are any.
template <class Hyperparameters, class Start>
void update_tensors(const ElementwiseLists& lists, const Hyperparameters& hyper, bool in_double, const Start& start) {
  std::vector<ListedTensor> tensors;
  int64_t blocks = 0, bytes = 0;
  for (std::size_t i = 0; i < lists.X.size(); ++i) {
    if ((lists.X[i].scalar_type() == at::kDouble) != in_double || lists.X[i].numel() == 0) continue;
    tensors.push_back(listed(lists, i));
    tensors.back().first_block = blocks;
    blocks += kernels::blocks_of(tensors.back().numel);
    bytes += moved_bytes(lists, i);
  }
  if (tensors.empty()) return;
  const c10::Device device = lists.X.front().device();
  const at::Tensor table = table_of(tensors.data(), tensors.size() * sizeof(ListedTensor), device);
  ListedUpdate update{};
  update.tensors = static_cast<const ListedTensor*>(table.const_data_ptr());
  update.count = static_cast<int64_t>(tensors.size());
  update.lr = device_number(hyper.lr, lists.multipliers.lr);
  update.weight_decay = device_number(hyper.weight_decay, lists.multipliers.weight_decay);
  update.beta1 = hyper.beta1;
  update.beta2 = hyper.beta2;
  update.rule = lists.rule;
  update.work = {bytes};
  if (hyper.maximize) update.rule.factor *= -1;
  start(update, blocks, stream_of(device));
}

}  // namespace

void Operations::lion_(const ElementwiseLists& lists, const LionHyperparameters& hyper) {
  for (const bool in_double : {false, true}) {
    update_tensors(lists, hyper, in_double, [&](const ListedUpdate& update, int64_t blocks, Stream stream) {
      kernels::lion(update, blocks, in_double, stream);
    });
  }
}

void Operations::adamw_(const ElementwiseLists& lists, const AdamWHyperparameters& hyper) {
  for (const bool in_double : {false, true}) {
    update_tensors(lists, hyper, in_double, [&](ListedUpdate update, int64_t blocks, Stream stream) {
      update.epsilon = hyper.epsilon;
      kernels::adamw(update, blocks, in_double, stream);
    });
  }
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
