// What all optimizers for LibTorch programs are: their options, states and methods.
#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torchdion/layout.h>
#include <torchdion/options.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace torchdion {

namespace engine {
struct ParameterState;
}
namespace optim {
class Front;
}

// The options of one parameter group. docs and defaults: csrc/algorithms; symbols are those of arXiv 2504.05295.
class Options : public torch::optim::OptimizerCloneableOptions<Options> {
 public:
  using Betas = std::tuple<double, double>;

  Options(double lr = 0.01) : lr_(lr) {}  // implicit, as torch::optim's own are

  TORCH_ARG(double, lr);                     // η, before the shape factor sqrt(m / n)
  TORCH_ARG(double, lr_multiplier) = 1;      // a factor on lr, so that one schedule drives all groups
  TORCH_ARG(double, mu) = 0.95;              // μ
  TORCH_ARG(std::optional<Betas>, betas);    // none: Lion's (0.95, 0.98) or AdamW's (0.9, 0.95)
  TORCH_ARG(double, weight_decay) = 0.01;    // λ, decoupled
  TORCH_ARG(bool, cautious_wd) = false;      // weights decay where they have the sign of the update alone
  TORCH_ARG(double, epsilon) = 1e-8;         // AdamW's ε
  TORCH_ARG(std::optional<bool>, nesterov);  // momentum a step ahead; none: Muon true, Dion false
  TORCH_ARG(NewtonSchulz, newton_schulz) = NewtonSchulz::automatic;         // Muon, NorMuon, Dion2, Dion3
  TORCH_ARG(int64_t, ns_steps) = 5;                                         // of the same: iterations
  TORCH_ARG(std::optional<AdjustLr>, adjust_lr) = AdjustLr::spectral_norm;  // of the same; none: lr as it is
  TORCH_ARG(double, muon_beta2) = 0.95;           // NorMuon, Dion3: β₂ of the mean squares of rows
  TORCH_ARG(double, fraction) = 0.25;             // Dion2, Dion3: share of the slices that is orthonormalized
  TORCH_ARG(double, ef_decay) = 0.95;             // Dion2, Dion3: μ by which momenta decay where they are
  TORCH_ARG(Select, select) = Select::automatic;  // Dion2: what slices are
  TORCH_ARG(bool, error_feedback) = true;         // Dion; false: M = μ M + G
  TORCH_ARG(Factorization, factorization) = Factorization::power_iteration;  // Dion
  TORCH_ARG(double, rank_fraction) = 1;                                      // r / min(m, n)
  TORCH_ARG(int64_t, rank_multiple_of) = 1;
  TORCH_ARG(int64_t, chunk_size) = 64;                    // DeMo: s of its s×s chunks
  TORCH_ARG(int64_t, top_k) = 32;                         // DeMo: coefficients of a chunk that are exchanged
  TORCH_ARG(double, replicate_mu) = 0.999;                // Double Dion: μ₁ of each replica's own momentum
  TORCH_ARG(double, replicate_rank_fraction) = 1. / 128;  // Double Dion: r₁ / min(m, n) of what replicas exchange
  TORCH_ARG(bool, delayed) = false;                       // Double Dion: it is exchanged after the step, see step()
  TORCH_ARG(Orientation, orientation) = Orientation::right;
  TORCH_ARG(Orthonormalize, orthonormalize) = Orthonormalize::automatic;
  TORCH_ARG(double, rcqr_oversample) = 1.25;                       // k / r
  TORCH_ARG(RightFactor, right_factor) = RightFactor::normalized;  // Dion: what the update takes of R
  TORCH_ARG(std::optional<Residual>, residual);       // Dion: how what P Rᵀ leaves moves weights; none: not at all
  TORCH_ARG(std::string, algorithm) = "";             // "dion", "muon", "lion", …; empty: the optimizer's own
  TORCH_ARG(std::string, scalar_algorithm) = "lion";  // of parameters that are no matrices
  TORCH_ARG(std::optional<int64_t>, batch_dims);      // leading dimensions that count matrices
  TORCH_ARG(int64_t, blocks) = 1;                     // matrices fused along the rows: 3 for QKV
  TORCH_ARG(bool, fan_in_first) = false;              // true for ConvTranspose weights
  TORCH_ARG(bool, skip_zero_gradients) = false;       // matrices of zero gradient are left as they are
  TORCH_ARG(bool, maximize) = false;
  TORCH_ARG(bool, capturable) = false;  // for CUDA graphs, see step(); alike in all groups
  // One floating-point number, in the place of lr or weight_decay where it is defined. A captured step reads it on its
  // device, anew at every replay; plain numbers are captured as they are. set_lr() writes into it.
  TORCH_ARG(at::Tensor, lr_tensor);
  TORCH_ARG(at::Tensor, weight_decay_tensor);
  TORCH_ARG(Nonfinite, nonfinite) = Nonfinite::propagate;  // alike in all groups
  TORCH_ARG(std::optional<Precision>, precision);          // none: high of Dion, medium of Muon and its siblings
  TORCH_ARG(int64_t, seed) = 0;                            // of Q's start and of sketches
  TORCH_ARG(Owners, owners) = Owners::all;                 // alike in all groups; shard: not of Dion, Double Dion, DeMo
  TORCH_ARG(std::optional<at::ScalarType>, momentum_dtype);  // none: the parameter's own
  TORCH_ARG(std::optional<at::ScalarType>, Q_dtype);
  TORCH_ARG(std::optional<at::ScalarType>, variance_dtype);

 public:
  double get_lr() const override;  // of lr_tensor, it waits for the device
  void set_lr(const double lr) override;
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// The state of one parameter; of a cut one, this rank's pieces.
class ParamState : public torch::optim::OptimizerCloneableParamState<ParamState> {
 public:
  // By name: those that the parameter's algorithm declares, and "step", a 0-d FP32 count of steps taken, on the CPU or,
  // if capturable, with the parameter. Undefined: there is none of this name.
  const at::Tensor& tensor(const std::string& name) const;
  ParamState& tensor(const std::string& name, at::Tensor value);
  const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }

  const at::Tensor& momentum() const { return tensor("momentum"); }  // of the parameter's shape
  const at::Tensor& Q() const { return tensor("Q"); }                // [stack..., m or n, r]; Dion
  const at::Tensor& variance() const { return tensor("variance"); }  // of the parameter's shape; AdamW
  const at::Tensor& step() const { return tensor("step"); }

  // The sizes of the whole state of this name: of a factor (Dion's Q) of which this rank has a piece those that were
  // given, of any other those that it has here.
  std::vector<int64_t> whole_sizes(const std::string& name) const;
  ParamState& whole_factor(const std::string& name, std::vector<int64_t> sizes);

  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;

 private:
  friend class optim::Front;
  void change();

  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, std::vector<int64_t>> whole_factors_;  // of cut parameters
  uint64_t version_ = 0;                                       // another one after each change, of no other state
};

// What an optimizer has done since it was made. No replay of a CUDA graph is counted.
struct Stats {
  int64_t steps = 0;
  int64_t skipped_steps = 0;      // under Nonfinite::skip_step
  int64_t nonfinite_entries = 0;  // of gradients, under the policies other than Nonfinite::propagate
  // Columns of P that were zero or not well above rounding, which is where a plain Cholesky factorization fails, and
  // became exactly zero, in the matrices that this rank orthonormalized.
  int64_t columns_without_signal = 0;
  // The number of them that were longer than their rounding, but not by the factor that counts as signal: there, runs
  // on different layouts may part (docs/reference/limits.md).
  int64_t columns_in_margin = 0;
  int64_t batches = 0;          // of the last step
  int64_t workspace_bytes = 0;  // of the last step
  // Elements that the last step had to send by the formulas of the paper's Table 2, by the names of axes.
  std::map<std::string, int64_t> expected_traffic = {};
  // What the axes of the layouts have carried since they were made, by their names.
  std::map<std::string, AxisTraffic> traffic = {};
};

// What all optimizers of the library are: an algorithm for the matrices among the parameters, Lion or AdamW for the
// rest. Each is what the class of its name is in Python, step for step and bit for bit.
//
// In a distributed job every rank makes the same optimizer, gives each parameter the same layout and steps at the same
// time; see set_layout(). Whatever the layouts, the trajectory is that of one process.
//
// Whatever is wrong with an argument, a gradient or a loaded state is a c10::Error of one sentence, and nothing has
// been written then. An optimizer that was moved from has no groups and no state, and its other methods throw
// c10::Error until another one is moved into it.
class Optimizer : public torch::optim::Optimizer {
 public:
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;
  ~Optimizer() override;

  // Nothing is added when an option or a parameter is refused.
  void add_param_group(const torch::optim::OptimizerParamGroup& param_group);

  // Says where the pieces of a parameter lie: the tensor is this rank's piece then, and state is of its size. The axes
  // are those of the parameter's matrices: rows is for dimension `batch_dims` of the tensor and cols for the next, the
  // other way round under fan_in_first; batch is for dimension 0 of a stack. A parameter of another rule than Dion has
  // the same names for its dimensions. A parameter without a layout is whole here, and its gradient the final one.
  //
  //   auto group = ...;  // c10::intrusive_ptr<c10d::ProcessGroup>
  //   optimizer.set_layout(weight, {.rows = torchdion::Axis(group, {.name = "shards"}), .sizes = {1024, 256}});
  //
  // With `replicas`, step() averages over them, and a gradient that is undefined on some of them counts as zero there;
  // a parameter without one on any is skipped. Replicas must start with equal weights: the first step, and the first
  // after a state dict was loaded, compares hashes of them, and warns of those that differ and get the first one's. A
  // matrix whose (m + n) r elements of P and R are fewer than its own is compressed to them (arXiv 2504.05295,
  // Section 4.3), and its momentum is each replica's own.
  //
  // With `copies`, whose gradients are averaged already, ranks share what Muon does for whole matrices; all of them
  // have a gradient of the parameter, or none has.
  //
  // Under Owners::shard each part of a parameter, which must be whole, has one owner among its replicas or copies,
  // which keeps the state and updates it for all. Either all parameters have such an axis or, on one process, none has.
  //
  // Give the parameters that share a line of ranks copies of one Axis: they are updated and counted together then.
  //
  // Throws c10::ValueError: a tensor that is no parameter of this optimizer, one that has state already, one that is
  // not the piece that the layout says, and a cut that no algorithm can follow: of the rows of fused `blocks`, of a
  // convolution elsewhere than in its first matrix dimension, under Orthonormalize::qr of the rows of P.
  void set_layout(const at::Tensor& param, Layout layout);

  // One step. A closure recomputes the loss and its gradients; its result is returned.
  //
  // A CUDA graph captures it under capturable(true): steps are counted on the device, rates read there, and
  // Nonfinite::skip_step is seen to there. Take a step or more before, which make the state and let ranks agree: of
  // later steps nothing is compared. After load_state_dict() or resize_rank() capture anew
  // (docs/guides/cuda-graphs.md).
  //
  // Under delayed(true) a step of Double Dion returns before replicas have exchanged what they have: a thread of one
  // core, or streams of GPUs, do it beside the next forward and backward pass, over a second group that each axis must
  // have (Axis::set_in_flight_group). Every method here waits for it, as the destructor does; no one else may touch the
  // states of matrices before. What fails there is thrown by the method that waits.
  at::Tensor step(LossClosure closure = nullptr) override;

  // The state of a parameter; throws c10::ValueError for one that has none yet.
  const ParamState& state_of(const at::Tensor& param) const;
  Stats stats() const;  // what it has done since it was made; waits for what is in flight

  // As torch::optim::Optimizer's, where they are not virtual.
  void zero_grad(bool set_to_none = true);
  torch::optim::OptimizerOptions& defaults();
  const torch::optim::OptimizerOptions& defaults() const;
  std::vector<at::Tensor>& parameters();
  const std::vector<at::Tensor>& parameters() const;
  void add_parameters(const std::vector<at::Tensor>& parameters);

  // Replaces momenta that are each replica's own by their mean, which is what a checkpoint must hold. To be called on
  // every rank, whichever of them saves. The training goes on as if it had not been called, up to rounding.
  void synchronize_for_checkpoint();

  // Compares the bytes of replicas, by hashes: of weights and of all states but decoupled momenta. To be called on
  // every rank. copies: the ranks that hold copies; absent: the replicas of each layout. Replicas part when they run on
  // unequal hardware, libraries or numbers of threads. Throws c10::Error that names the parameters, on all ranks of the
  // axis.
  void check_replicas(const Axis& copies = {}) const;
  // Gives all replicas the weights and states of the first; decoupled momenta stay as they are. To be called on every
  // rank.
  void synchronize_replicas(const Axis& copies = {});

  // The state dict of the Python optimizer: {"state": {index: {name: tensor}}, "param_groups": [{option: value}]}, of
  // this rank's pieces, or what it owns. Tensors are shared with the optimizer. Throws c10::Error after a step that
  // failed when it had begun to write, and while momenta are each replica's own: see synchronize_for_checkpoint().
  c10::IValue state_dict() const;
  // The same of whole parameters, put together from all ranks' pieces: one process, or any other layout, loads it, in
  // either language. Synchronizes momenta first. To be called on every rank.
  c10::IValue whole_state_dict();
  // Takes a state dict of either language, or one of torch.optim.Muon, torch.optim.AdamW or the dion package
  // (docs/guides/migrating.md), all of it or nothing; copies its tensors. Those of cut parameters are this rank's
  // pieces or whole, which are cut.
  void load_state_dict(const c10::IValue& state_dict);

  // Gives every Q the rank that the options of its group ask for, rank_fraction above all: after a checkpoint of
  // another rank was loaded, for one. A smaller rank keeps the leading columns, a larger one adds orthonormal ones. To
  // be called on every rank.
  void resize_rank();

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  // A parameter that a group holds twice is warned of and updated once. The options of groups rule, the defaults are
  // for groups without any. Throws c10::ValueError: no parameters, one in two groups or that no algorithm takes, an
  // option outside its range. algorithm: of groups that name none; title: of the class, as sentences call it.
  Optimizer(const std::string& algorithm, const std::string& title,
            const std::vector<torch::optim::OptimizerParamGroup>& param_groups, Options defaults);

  // The groups with Owners::shard among their options, where they have ours.
  static std::vector<torch::optim::OptimizerParamGroup> with_owners(
      std::vector<torch::optim::OptimizerParamGroup> param_groups);

 private:
  struct Private;

  Private& held() const;  // throws c10::Error where it was moved from
  void add_checked(const torch::optim::OptimizerParamGroup& param_group);
  c10::IValue state_dict_of(const std::vector<engine::ParameterState>& own, bool whole) const;

  std::unique_ptr<Private> private_;
};

}  // namespace torchdion
