// A mesh of ranks, each a thread: replicas × fully-sharded × tensor parallel.
#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "comm/ranks_as_threads.h"

namespace torchdion::comm {

struct MeshShape {
  int dp = 1, fs = 1, tp = 1;
  int size() const { return dp * fs * tp; }
};

// This rank's three lines.
struct MeshAxes {
  Axis dp, fs, tp;
  int rank = 0;  // in row-major order
};

class Mesh {
 public:
  explicit Mesh(MeshShape shape) : shape(shape) {
    for (int rank = 0; rank < shape.size(); ++rank) {
      for (int dim = 0; dim < 3; ++dim) {
        std::unique_ptr<Meeting>& meeting = lines_[dim][line_of(rank, dim)];
        if (!meeting) meeting = std::make_unique<Meeting>(sizes()[dim]);
      }
    }
  }

  const MeshShape shape;

  // Runs body(axes) on a thread for each rank, and rethrows the exception of the lowest rank that had one.
  void run(const std::function<void(MeshAxes)>& body) {
    Meeting all(shape.size());
    on_every_rank(&all, [&](Axis everyone) { body(axes_of(everyone.rank)); });
  }

  // How many collectives a rank issued on its line of dp (0), fs (1) or tp (2), and what they gave to others.
  int64_t calls(int rank, int dim) {
    return static_cast<int64_t>(meeting_of(rank, dim).logs[coordinates(rank)[dim]].size());
  }
  // But for those that gather: of unequal pieces each is a broadcast of its own.
  int64_t calls_that_sum(int rank, int dim) {
    const std::vector<std::string>& log = meeting_of(rank, dim).logs[coordinates(rank)[dim]];
    return std::count_if(log.begin(), log.end(), [](const std::string& call) {
      return !call.starts_with("broadcast") && !call.starts_with("all_gather");
    });
  }
  int64_t sent_bytes(int rank, int dim) { return meeting_of(rank, dim).sent[coordinates(rank)[dim]]; }

 private:
  std::array<int, 3> sizes() const { return {shape.dp, shape.fs, shape.tp}; }
  std::array<int, 3> coordinates(int rank) const {
    return {rank / (shape.fs * shape.tp), rank / shape.tp % shape.fs, rank % shape.tp};
  }
  std::array<int, 3> line_of(int rank, int dim) const {
    std::array<int, 3> line = coordinates(rank);
    line[dim] = 0;
    return line;
  }
  Meeting& meeting_of(int rank, int dim) { return *lines_[dim].at(line_of(rank, dim)); }
  MeshAxes axes_of(int rank) {
    const auto [dp, fs, tp] = coordinates(rank);
    return {axis_of(&meeting_of(rank, 0), dp, {.name = "dp"}), axis_of(&meeting_of(rank, 1), fs, {.name = "fs"}),
            axis_of(&meeting_of(rank, 2), tp, {.name = "tp"}), rank};
  }

  std::array<std::map<std::array<int, 3>, std::unique_ptr<Meeting>>, 3> lines_;
};

}  // namespace torchdion::comm
