#include "trainer.h"

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/utils/clip_grad.h>

#include <chrono>
#include <cmath>
#include <type_traits>

#include "problem.h"
#include "sample.h"
#include "schedule.h"

namespace gpt {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTemperature = 0.8;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The same on every device: drawn on the CPU.
std::shared_ptr<GPT> first_model(const Recipe& recipe, at::Device device) {
  at::manual_seed(static_cast<uint64_t>(recipe.seed));
  auto model = std::make_shared<GPT>(kVocabulary, recipe.layers, recipe.d_model, recipe.heads);
  model->to(device);
  return model;
}

// Clocks would else see that work was begun.
void wait_for(at::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

torchdion::NewtonSchulz newton_schulz(const std::string& name) {
  if (name == "auto") return torchdion::NewtonSchulz::automatic;
  if (name == "jordan") return torchdion::NewtonSchulz::jordan;
  return name == "gram" ? torchdion::NewtonSchulz::gram : torchdion::NewtonSchulz::polar_express;
}

// Its default options are those of groups without any: here all have some.
std::unique_ptr<torchdion::Optimizer> optimizer_of(const GPT& model, const Recipe& recipe) {
  torchdion::Options options(recipe.lr);
  options.weight_decay(recipe.weight_decay);
  const auto made = [&]<class Optimizer>(std::type_identity<Optimizer>) {
    return std::make_unique<Optimizer>(torchdion::param_groups(model, options, {"head"}));
  };
  if (recipe.nesterov != "auto") options.nesterov(recipe.nesterov == "on");
  options.newton_schulz(newton_schulz(recipe.newton_schulz)).ns_steps(recipe.ns_steps).fraction(recipe.fraction);
  if (recipe.optimizer == "muon") return made(std::type_identity<torchdion::Muon>());
  if (recipe.optimizer == "dist_muon") return made(std::type_identity<torchdion::DistMuon>());
  if (recipe.optimizer == "normuon") return made(std::type_identity<torchdion::NorMuon>());
  if (recipe.optimizer == "dion2") return made(std::type_identity<torchdion::Dion2>());
  if (recipe.optimizer == "dion3") return made(std::type_identity<torchdion::Dion3>());
  if (recipe.optimizer == "lion") return made(std::type_identity<torchdion::Lion>());
  if (recipe.optimizer == "adamw") return made(std::type_identity<torchdion::AdamW>());
  if (recipe.optimizer == "dist_adamw") return made(std::type_identity<torchdion::DistAdamW>());
  if (recipe.optimizer == "demo") {
    options.mu(0.999);
    return made(std::type_identity<torchdion::DeMo>());
  }
  options.seed(recipe.seed);
  if (recipe.optimizer == "double_dion") {
    options.rank_fraction(0.25).delayed(recipe.delayed == "on");
    return made(std::type_identity<torchdion::DoubleDion>());
  }
  options.rank_fraction(recipe.rank_fraction);
  if (recipe.residual != "none") {
    options.residual(recipe.residual == "sign" ? torchdion::Residual::sign : torchdion::Residual::scaled);
  }
  if (recipe.right_factor == "orthonormal") options.right_factor(torchdion::RightFactor::orthonormal);
  options.error_feedback(recipe.error_feedback == "on");
  return made(std::type_identity<torchdion::Dion>());
}

c10::impl::GenericDict new_dict() { return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get()); }

at::Generator generator() { return at::globalContext().defaultGenerator(at::kCPU); }

}  // namespace

Trainer::Trainer(const Recipe& recipe, const Text& text, const Job& job)
    : recipe_(recipe),
      job_(job),
      model_(first_model(recipe, job.device())),
      optimizer_(optimizer_of(*model_, recipe)),
      train_(text.train(), recipe.context),
      validation_(Windows(text.validation(), recipe.context).evenly_spaced(recipe.validation_windows)) {
  for (const at::Tensor& weight : model_->parameters()) optimizer_->set_layout(weight, {.replicas = job.replicas()});
}

StepReport Trainer::train_step() {
  const Clock::time_point start = Clock::now();
  optimizer_->zero_grad();
  const int64_t share = recipe_.batch / job_.size();
  const at::Tensor loss = loss_of(train_.batch(recipe_.seed, step_ * recipe_.batch + job_.rank() * share, share));
  loss.backward();  // of this share alone: the optimizer averages what it needs over the replicas
  if (recipe_.clip > 0) torch::nn::utils::clip_grad_norm_(model_->parameters(), recipe_.clip);
  StepReport report{
      .loss = finite(job_.sum(loss.item<double>()) / job_.size()), .tokens_per_second = 0, .optimizer_ms = 0};

  const Clock::time_point before_update = Clock::now();
  const double factor = Schedule{recipe_.steps, recipe_.warmup, recipe_.decay}.factor(step_);
  for (auto& group : optimizer_->param_groups()) group.options().set_lr(recipe_.lr * factor);
  optimizer_->step();
  wait_for(job_.device());
  report.optimizer_ms = 1000 * seconds_since(before_update);
  report.tokens_per_second = static_cast<double>(recipe_.batch * recipe_.context) / seconds_since(start);
  ++step_;
  return report;
}

double Trainer::validate() {
  const at::NoGradGuard no_gradient;
  const int64_t windows = validation_.inputs.size(0);
  double total = 0;
  for (int64_t first = job_.rank() * recipe_.batch; first < windows; first += job_.size() * recipe_.batch) {
    const int64_t count = std::min(recipe_.batch, windows - first);
    const Batch part{validation_.inputs.narrow(0, first, count), validation_.targets.narrow(0, first, count)};
    total += loss_of(part).item<double>() * static_cast<double>(count);
  }
  return finite(job_.sum(total) / static_cast<double>(windows));
}

std::string Trainer::sample(int64_t length) {
  const auto logits = [&](const at::Tensor& tokens) { return model_->forward(tokens.to(job_.device())).cpu(); };
  return gpt::sample(logits, length, recipe_.context, kTemperature);
}

c10::impl::GenericDict Trainer::state() {
  c10::impl::GenericDict weights = new_dict();
  for (const auto& item : model_->named_parameters()) weights.insert(item.key(), item.value().detach());
  c10::impl::GenericDict state = new_dict();
  state.insert("step", step_);
  state.insert("model", weights);
  state.insert("optimizer", optimizer_->whole_state_dict());  // on all ranks, which may have something of their own
  state.insert("random", generator().get_state());
  return state;
}

void Trainer::load(const c10::impl::GenericDict& state) {
  const at::NoGradGuard no_gradient;
  const c10::impl::GenericDict weights = state.at("model").toGenericDict();
  for (auto& item : model_->named_parameters()) item.value().copy_(weights.at(item.key()).toTensor());
  optimizer_->load_state_dict(state.at("optimizer"));
  generator().set_state(state.at("random").toTensor());
  step_ = state.at("step").toInt();
}

at::Tensor Trainer::loss_of(const Batch& batch) {
  const at::Device device = job_.device();
  return at::cross_entropy_loss(model_->forward(batch.inputs.to(device)).flatten(0, 1),
                                batch.targets.to(device).flatten());
}

double Trainer::finite(double loss) const {
  if (std::isfinite(loss)) return loss;
  throw Problem("the loss is not finite after " + std::to_string(step_) + " steps; a lower --lr may help", Fault::run);
}

}  // namespace gpt
