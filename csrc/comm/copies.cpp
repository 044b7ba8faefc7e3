#include "comm/copies.h"

#include <ATen/ops/empty.h>

#include <string_view>

#include "comm/line.h"

namespace torchdion::comm {

namespace {

int64_t digest(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  const std::string_view bytes(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  return static_cast<int64_t>(std::hash<std::string_view>{}(bytes));
}

void all_reduce_and_wait(const at::Tensor& tensor, c10d::ReduceOp::RedOpType operation, const Axis& axis) {
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  std::vector<at::Tensor> tensors{tensor};
  axis.line->group->allreduce(tensors, options)->wait();
}

}  // namespace

void average(const at::Tensor& tensor, const Axis& axis) {
  if (axis.absent() || tensor.numel() == 0) return;
  const at::Tensor mean = tensor.to(tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat,
                                    /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  all_reduce_and_wait(mean, c10d::ReduceOp::SUM, axis);
  tensor.copy_(mean.div_(axis.size));
}

void copy_from_first(const at::Tensor& tensor, const Axis& axis) {
  if (axis.absent() || tensor.numel() == 0) return;
  std::vector<at::Tensor> copies{tensor.clone(at::MemoryFormat::Contiguous)};
  axis.line->group->broadcast(copies, c10d::BroadcastOptions())->wait();
  tensor.copy_(copies[0]);
}

std::vector<bool> differing(const std::vector<at::Tensor>& tensors, const Axis& axis) {
  std::vector<bool> answer(tensors.size(), false);
  if (axis.absent() || tensors.empty()) return answer;
  const auto count = static_cast<int64_t>(tensors.size());
  const at::Tensor digests = at::empty({2, count}, at::kLong);
  auto* values = digests.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    values[i] = digest(tensors[i]);
    values[count + i] = ~values[i];  // the largest complement is that of the smallest
  }
  all_reduce_and_wait(digests, c10d::ReduceOp::MAX, axis);
  for (int64_t i = 0; i < count; ++i) answer[i] = values[i] != ~values[count + i];
  return answer;
}

}  // namespace torchdion::comm
