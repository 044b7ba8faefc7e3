// The optimizers for LibTorch programs, a class for each algorithm.
#pragma once

#include <torchdion/optimizer.h>

#include <utility>
#include <vector>

namespace torchdion {

// What the classes of algorithms add to it: their names, and the options of those whose groups have none.
template <class Class, class Defaults>
class OptimizerOf : public Optimizer {
 public:
  explicit OptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                       Options defaults = Defaults())
      : Optimizer(Class::algorithm, Class::title, param_groups, Class::resolved(std::move(defaults))) {}
  explicit OptimizerOf(std::vector<at::Tensor> params, Options defaults = Defaults())
      : OptimizerOf(
            std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup(std::move(params))},
            std::move(defaults)) {}

  static Options resolved(Options defaults) { return defaults; }
};

// Those of a class whose states have owners, whatever the options say: Owners::shard among the replicas or copies of
// each parameter's layout.
template <class Class, class Defaults>
class SharedOptimizerOf : public OptimizerOf<Class, Defaults> {
 public:
  explicit SharedOptimizerOf(std::vector<torch::optim::OptimizerParamGroup> param_groups, Options defaults = Defaults())
      : OptimizerOf<Class, Defaults>(Optimizer::with_owners(std::move(param_groups)), std::move(defaults)) {}
  explicit SharedOptimizerOf(std::vector<at::Tensor> params, Options defaults = Defaults())
      : OptimizerOf<Class, Defaults>(std::move(params), std::move(defaults)) {}

  void add_param_group(const torch::optim::OptimizerParamGroup& param_group) {
    Optimizer::add_param_group(Optimizer::with_owners({param_group}).front());
  }
  static Options resolved(Options defaults) { return defaults.owners(Owners::shard); }
};

// Options with Dion's defaults.
using DionOptions = Options;

// Dion (arXiv 2504.05295, Algorithm 1).
//
//   torchdion::Dion optimizer(model->parameters(), torchdion::DionOptions(0.01).rank_fraction(0.25));
class Dion : public OptimizerOf<Dion, DionOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  static constexpr auto algorithm = "dion", title = "torchdion::Dion";
};

// Options with Muon's, NorMuon's, Dion2's and Dion3's defaults.
struct MuonOptions : Options {
  MuonOptions(double lr = 0.02) : Options(lr) {}
};

// Muon (https://kellerjordan.github.io/posts/muon): the orthonormalized momentum, of whole matrices on any layout.
//
//   torchdion::Muon optimizer(model->parameters(), torchdion::MuonOptions(0.02).weight_decay(0.1));
class Muon : public OptimizerOf<Muon, MuonOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  static constexpr auto algorithm = "muon", title = "torchdion::Muon";
};

// Muon whose momenta have owners, of each matrix one (nanochat's DistMuon): a step takes gradients to them and updated
// weights back, and N ranks keep 1 + 1 / N numbers for each parameter. On one process it is Muon.
//
//   torchdion::DistMuon optimizer(model->parameters(), torchdion::MuonOptions(0.02));
//   optimizer.set_layout(weight, {.replicas = axis});  // for all parameters
class DistMuon : public SharedOptimizerOf<DistMuon, MuonOptions> {
 public:
  using SharedOptimizerOf::SharedOptimizerOf;
  static constexpr auto algorithm = "muon", title = "torchdion::DistMuon";
};

// NorMuon (arXiv 2510.05491): Muon with rows normalized by running means of their squares.
class NorMuon : public OptimizerOf<NorMuon, MuonOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  static constexpr auto algorithm = "normuon", title = "torchdion::NorMuon";
};

// Dion2 (arXiv 2512.16928): of each momentum the rows or columns of the largest norms are orthonormalized.
//
//   torchdion::Dion2 optimizer(model->parameters(), torchdion::MuonOptions(0.02).fraction(0.25));
class Dion2 : public OptimizerOf<Dion2, MuonOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  static constexpr auto algorithm = "dion2", title = "torchdion::Dion2";
};

// Dion3: Dion2 of rows alone, normalized as NorMuon's.
class Dion3 : public OptimizerOf<Dion3, MuonOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  static constexpr auto algorithm = "dion3", title = "torchdion::Dion3";
};

// Options with Double Dion's defaults.
struct DoubleDionOptions : Options {
  DoubleDionOptions(double lr = 0.01) : Options(lr) { rank_fraction(0.25); }
};

// Double Dion (arXiv 2504.05295, Algorithm 6): replicas exchange factors of a rank of their own, smaller than that of
// the update.
class DoubleDion : public OptimizerOf<DoubleDion, DoubleDionOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  static constexpr auto algorithm = "double_dion", title = "torchdion::DoubleDion";
};

// Options with DeMo's defaults.
struct DeMoOptions : Options {
  DeMoOptions(double lr = 0.001) : Options(lr) { mu(0.999); }
};

// DeMo (arXiv 2411.19870): replicas exchange the largest coefficients of chunked cosine transforms; steps by signs.
class DeMo : public OptimizerOf<DeMo, DeMoOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  static constexpr auto algorithm = "demo", title = "torchdion::DeMo";
};

// Options with Lion's defaults.
struct LionOptions : Options {
  LionOptions(double lr = 1e-4) : Options(lr) {}
};

// Lion (arXiv 2302.06675) of all parameters, cut in any way.
class Lion : public OptimizerOf<Lion, LionOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  static constexpr auto algorithm = "lion", title = "torchdion::Lion";
};

// Options with AdamW's defaults.
struct AdamWOptions : Options {
  AdamWOptions(double lr = 0.002) : Options(lr) {}
};

// AdamW (arXiv 1711.05101) of all parameters, cut in any way: torch::optim::AdamW's steps up to rounding.
class AdamW : public OptimizerOf<AdamW, AdamWOptions> {
 public:
  using OptimizerOf::OptimizerOf;
  static constexpr auto algorithm = "adamw", title = "torchdion::AdamW";
};

// AdamW whose moments have owners, entry by entry (nanochat's DistAdamW; arXiv 1910.02054, stage 2): N ranks keep
// 1 + 2 / N numbers for each parameter. See DistMuon.
class DistAdamW : public SharedOptimizerOf<DistAdamW, AdamWOptions> {
 public:
  using SharedOptimizerOf::SharedOptimizerOf;
  static constexpr auto algorithm = "adamw", title = "torchdion::DistAdamW";
};

}  // namespace torchdion
