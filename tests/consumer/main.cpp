// consumer IN OUT: continues a training that Python has begun. IN holds the parameters, the gradients of each step and
// a state dict, the name of the optimizer and whether its steps are to be capturable; OUT gets the parameters and the
// state dict after those steps, OUT.archive what torch::save() writes.
#include <ATen/Parallel.h>
#include <torch/serialize.h>
#include <torchdion/torchdion.h>

#include <iostream>
#include <memory>

namespace {

std::vector<at::Tensor> tensors(const c10::IValue& list) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& item : list.toListRef()) all.push_back(item.toTensor());
  return all;
}

std::vector<torch::optim::OptimizerParamGroup> groups_like(const c10::IValue& state_dict,
                                                           const std::vector<at::Tensor>& params) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  auto next = params.begin();
  for (const c10::IValue& group : state_dict.toGenericDict().at("param_groups").toListRef()) {
    const auto count = static_cast<std::ptrdiff_t>(group.toGenericDict().at("params").toListRef().size());
    groups.emplace_back(std::vector<at::Tensor>(next, next + count));
    next += count;
  }
  return groups;
}

std::unique_ptr<torchdion::Optimizer> optimizer_of(const c10::impl::GenericDict& saved,
                                                   const std::vector<at::Tensor>& params) {
  const std::vector<torch::optim::OptimizerParamGroup> groups = groups_like(saved.at("state_dict"), params);
  const bool capturable = saved.at("capturable").toBool();
  if (saved.at("optimizer").toStringRef() == "Muon") {
    return std::make_unique<torchdion::Muon>(groups, torchdion::MuonOptions().capturable(capturable));
  }
  return std::make_unique<torchdion::Dion>(groups, torchdion::DionOptions().capturable(capturable));
}

int run(const std::string& input, const std::string& output) {
  const auto saved = torchdion::read_checkpoint(input).toGenericDict();
  at::set_num_threads(1);
  std::vector<at::Tensor> params = tensors(saved.at("params"));
  for (at::Tensor& param : params) param.requires_grad_();
  const std::unique_ptr<torchdion::Optimizer> optimizer = optimizer_of(saved, params);
  optimizer->load_state_dict(saved.at("state_dict"));
  for (const c10::IValue& step : saved.at("gradients").toListRef()) {
    const std::vector<at::Tensor> gradients = tensors(step);
    for (std::size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = gradients[i];
    optimizer->step();
  }
  c10::impl::GenericDict result(c10::StringType::get(), c10::AnyType::get());
  c10::impl::GenericList list(c10::AnyType::get());
  for (const at::Tensor& param : params) list.push_back(param.detach());
  result.insert("params", list);
  result.insert("state_dict", optimizer->state_dict());
  torchdion::write_checkpoint(result, output);
  torch::save(*optimizer, output + ".archive");
  std::cout << "steps: " << optimizer->stats().steps << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: consumer IN OUT" << std::endl;
    return 2;
  }
  try {
    return run(argv[1], argv[2]);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << std::endl;
    return 1;
  }
}
