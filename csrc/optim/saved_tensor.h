// Tensors as a pickle describes them: a storage, and sizes and strides in it, none of which is believed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace torchdion::optim {

// Reads the bytes that a name in the pickle stands for.
using ReadStorage = std::function<c10::Storage(const std::string& key)>;

class SavedTensors {
 public:
  explicit SavedTensors(ReadStorage read) : read_(std::move(read)) {}

  // A capsule for tensor(): so many elements of a type such as "torch.FloatStorage". Each key is read once.
  c10::intrusive_ptr<torch::CustomClassHolder> storage(const std::string& type, const std::string& key, int64_t numel);

  // The arguments of torch._utils._rebuild_tensor_v2: storage, offset, sizes, strides, requires_grad, hooks.
  at::Tensor tensor(const std::vector<c10::IValue>& arguments) const;
  // Those of torch._utils._rebuild_parameter: tensor, requires_grad, hooks.
  at::Tensor parameter(const std::vector<c10::IValue>& arguments) const;

  // Of a tuple of numbers that are not negative, such as the sizes of a tensor.
  static std::vector<int64_t> integers(const c10::IValue& tuple);

 private:
  ReadStorage read_;
  std::map<std::string, c10::Storage> read_before_;
};

}  // namespace torchdion::optim
