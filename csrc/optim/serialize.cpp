// Options and states one by one, as every torch::optim optimizer's are: what LibTorch's archives of a whole optimizer
// hold is in state_dict.cpp.
#include <torch/serialize/archive.h>

#include <atomic>

#include "algorithms/all.h"
#include "optim/options.h"

namespace torchdion {

void Options::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, value] : optim::to_entries(*this)) archive.write(name, value);
}

void Options::serialize(torch::serialize::InputArchive& archive) {
  optim::Entries entries;
  for (const std::string& name : archive.keys()) archive.read(name, entries[name]);
  optim::from_entries(entries, *this, "");
}

const at::Tensor& ParamState::tensor(const std::string& name) const {
  static const at::Tensor none;
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? none : found->second;
}

void ParamState::change() {
  static std::atomic<uint64_t> changes = 0;
  version_ = ++changes;
}

ParamState& ParamState::tensor(const std::string& name, at::Tensor value) {
  change();
  tensors_[name] = std::move(value);
  return *this;
}

std::vector<int64_t> ParamState::whole_sizes(const std::string& name) const {
  const auto found = whole_factors_.find(name);
  return found == whole_factors_.end() ? tensor(name).sizes().vec() : found->second;
}

ParamState& ParamState::whole_factor(const std::string& name, std::vector<int64_t> sizes) {
  change();
  whole_factors_[name] = std::move(sizes);
  return *this;
}

void ParamState::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.defined()) archive.write(name, tensor, /*is_buffer=*/true);
  }
}

void ParamState::serialize(torch::serialize::InputArchive& archive) {
  change();
  const auto read = [&](std::string_view state) {
    const std::string name(state);
    at::Tensor tensor;
    if (archive.try_read(name, tensor, /*is_buffer=*/true)) tensors_[name] = std::move(tensor);
  };
  for (const std::string_view state : algorithms::states()) read(state);
  read("step");
}

}  // namespace torchdion
