// refusals IN OUT: what a C++ optimizer says where a Python one says the same. IN holds parameters, the numbers of
// those in each group, a state dict that fits, and others that do not; OUT gets the state dict of a fresh optimizer of
// each class, a sentence for each of those others (empty: it was taken), and one for each option with a value that it
// may not have.
#include <torchdion/torchdion.h>

#include <functional>
#include <iostream>

namespace {

using torchdion::Options;

struct Refused {
  const char* option;
  std::function<void(Options&)> give;
};

const std::vector<Refused> kRefused{
    {"lr", [](Options& options) { options.lr(-1.5); }},
    {"lr_multiplier", [](Options& options) { options.lr_multiplier(-1.5); }},
    {"mu", [](Options& options) { options.mu(1.5); }},
    {"betas", [](Options& options) { options.betas(Options::Betas(0.5, 1.5)); }},
    {"weight_decay", [](Options& options) { options.weight_decay(-1.5); }},
    {"epsilon", [](Options& options) { options.epsilon(-1.5); }},
    {"rank_fraction", [](Options& options) { options.rank_fraction(1.5); }},
    {"rank_multiple_of", [](Options& options) { options.rank_multiple_of(-3); }},
    {"chunk_size", [](Options& options) { options.chunk_size(-3); }},
    {"top_k", [](Options& options) { options.top_k(-3); }},
    {"replicate_mu", [](Options& options) { options.replicate_mu(1.5); }},
    {"replicate_rank_fraction", [](Options& options) { options.replicate_rank_fraction(1.5); }},
    {"ns_steps", [](Options& options) { options.ns_steps(-3); }},
    {"muon_beta2", [](Options& options) { options.muon_beta2(1.5); }},
    {"fraction", [](Options& options) { options.fraction(1.5); }},
    {"ef_decay", [](Options& options) { options.ef_decay(1.5); }},
    {"rcqr_oversample", [](Options& options) { options.rcqr_oversample(0.5); }},
    {"batch_dims", [](Options& options) { options.batch_dims(-3); }},
    {"blocks", [](Options& options) { options.blocks(-3); }},
};

std::string sentence_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

c10::IValue of(const std::vector<std::string>& sentences) {
  c10::impl::GenericList list(c10::StringType::get());
  for (const std::string& sentence : sentences) list.push_back(sentence);
  return list;
}

c10::IValue fresh(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  c10::impl::GenericDict state_dicts(c10::StringType::get(), c10::AnyType::get());
  state_dicts.insert("Dion", torchdion::Dion(groups).state_dict());
  state_dicts.insert("Muon", torchdion::Muon(groups).state_dict());
  state_dicts.insert("NorMuon", torchdion::NorMuon(groups).state_dict());
  state_dicts.insert("Dion2", torchdion::Dion2(groups).state_dict());
  state_dicts.insert("Dion3", torchdion::Dion3(groups).state_dict());
  state_dicts.insert("DoubleDion", torchdion::DoubleDion(groups).state_dict());
  state_dicts.insert("DeMo", torchdion::DeMo(groups).state_dict());
  state_dicts.insert("Lion", torchdion::Lion(groups).state_dict());
  state_dicts.insert("AdamW", torchdion::AdamW(groups).state_dict());
  return state_dicts;
}

int run(const std::string& input, const std::string& output) {
  const auto given = torchdion::read_checkpoint(input).toGenericDict();
  std::vector<at::Tensor> params;
  for (const c10::IValue& param : given.at("params").toListRef()) params.push_back(param.toTensor().requires_grad_());
  std::vector<torch::optim::OptimizerParamGroup> groups;
  auto next = params.begin();
  for (const c10::IValue& count : given.at("counts").toListRef()) {
    groups.emplace_back(std::vector<at::Tensor>(next, next + count.toInt()));
    next += count.toInt();
  }

  std::vector<std::string> loading, options;
  for (const c10::IValue& state_dict : given.at("spoiled").toListRef()) {
    torchdion::Dion optimizer(groups);
    optimizer.load_state_dict(given.at("fitting"));
    loading.push_back(sentence_of([&] { optimizer.load_state_dict(state_dict); }));
  }
  c10::impl::GenericDict of_options(c10::StringType::get(), c10::AnyType::get());
  for (const Refused& refused : kRefused) {
    Options given_options;
    refused.give(given_options);
    of_options.insert(refused.option, sentence_of([&] { torchdion::Dion(groups, given_options); }));
  }
  c10::impl::GenericDict result(c10::StringType::get(), c10::AnyType::get());
  result.insert("fresh", fresh(groups));
  result.insert("loading", of(loading));
  result.insert("options", of_options);
  torchdion::write_checkpoint(result, output);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: refusals IN OUT" << std::endl;
    return 2;
  }
  return run(argv[1], argv[2]);
}
