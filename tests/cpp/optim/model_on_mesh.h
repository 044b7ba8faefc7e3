// The model of the tests on a mesh of ranks as threads: each has its pieces, each replica its own gradients.
#pragma once

#include "comm/mesh_as_threads.h"
#include "optim/model.h"

namespace torchdion {

// Under which replicas on a mesh of 2 × 2 exchange P and R of some matrices, and momenta of others.
inline const DionOptions kCompressed = DionOptions(0.1).rank_fraction(0.25);

constexpr int64_t kBatchDims[] = {0, 0, 0, 1, 0};  // of Model::params()

// Every kind of cut: both ways round, of a stack, of vectors.
inline std::vector<Layout> layouts_on(const comm::MeshAxes& axes, const Model& model) {
  std::vector<Layout> layouts(5);
  layouts[0].rows = axes.fs, layouts[0].cols = axes.tp;   // weight
  layouts[1].rows = axes.tp, layouts[1].cols = axes.fs;   // square
  layouts[3].batch = axes.fs, layouts[3].rows = axes.tp;  // experts
  layouts[4].rows = axes.tp;                              // vector
  const std::vector<at::Tensor> params = model.params();
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    layouts[i].replicas = axes.dp;
    layouts[i].sizes = params[i].sizes().vec();
  }
  return layouts;
}

inline at::Tensor piece_of(const at::Tensor& whole, const Layout& layout, int64_t batch_dims) {
  at::Tensor piece = whole.detach();
  const auto cut = [&](const Axis& axis, int64_t dim) {
    if (axis.absent()) return;
    const Piece part = axis.piece(piece.size(dim));
    piece = piece.narrow(dim, part.begin, part.size);
  };
  cut(layout.batch, 0);
  cut(layout.rows, batch_dims);
  cut(layout.cols, batch_dims + 1);
  return piece.contiguous().clone();
}

// One rank's part of a training.
struct ModelOnMesh {
  Model whole, local = whole.clone();
  comm::MeshAxes axes;
  int replicas;
  std::vector<Layout> layouts;
  Dion optimizer;

  ModelOnMesh(const Model& model, const comm::MeshAxes& axes, int replicas, const DionOptions& options)
      : whole(model), axes(axes), replicas(replicas), layouts(layouts_on(axes, model)), optimizer(cut(options)) {
    for (std::size_t i = 0; i < layouts.size(); ++i) optimizer.set_layout(local.params()[i], layouts[i]);
  }

  // The piece of a replica's own gradient.
  at::Tensor gradient(std::size_t i, int step, int replica) const {
    return piece_of(normal(whole.params()[i].sizes(), 1000 * step + 10 * replica + i), layouts[i], kBatchDims[i]);
  }

  // The mean of all replicas' gradients on one process, this replica's own on a mesh.
  void step(int number) {
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      at::Tensor param = local.params()[i];
      if (replicas == axes.dp.size) {
        param.mutable_grad() = gradient(i, number, axes.dp.rank);
        continue;
      }
      param.mutable_grad() = at::zeros_like(param);
      for (int d = 0; d < replicas; ++d) param.mutable_grad().add_(gradient(i, number, d), 1.0 / replicas);
    }
    optimizer.step();
  }

 private:
  std::vector<OptimizerParamGroup> cut(const DionOptions& options) {
    at::Tensor* params[] = {&local.weight, &local.square, &local.bias, &local.experts, &local.vector};
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      *params[i] = piece_of(*params[i], layouts[i], kBatchDims[i]).requires_grad_();
    }
    return local.groups(options);
  }
};

}  // namespace torchdion
