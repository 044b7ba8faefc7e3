// Options and states one by one, as every torch::optim optimizer's are: what LibTorch's archives of a whole optimizer
// hold is in state_dict.cpp.
#include <torch/serialize/archive.h>

#include "optim/options.h"

namespace torchdion {

void DionOptions::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, value] : optim::to_entries(*this)) archive.write(name, value);
}

void DionOptions::serialize(torch::serialize::InputArchive& archive) {
  optim::Entries entries;
  for (const std::string& name : archive.keys()) archive.read(name, entries[name]);
  optim::from_entries(entries, *this, "");
}

void DionParamState::serialize(torch::serialize::OutputArchive& archive) const {
  const auto write = [&](const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) archive.write(name, tensor, /*is_buffer=*/true);
  };
  write("momentum", momentum());
  write("Q", Q());
  write("variance", variance());
  write("step", step());
}

void DionParamState::serialize(torch::serialize::InputArchive& archive) {
  archive.try_read("momentum", momentum(), /*is_buffer=*/true);
  archive.try_read("Q", Q(), /*is_buffer=*/true);
  archive.try_read("variance", variance(), /*is_buffer=*/true);
  archive.try_read("step", step(), /*is_buffer=*/true);
}

}  // namespace torchdion
