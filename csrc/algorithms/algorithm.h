// What an algorithm declares of itself: all that the engine and both languages know of it.
#pragma once

#include <c10/core/Device.h>
#include <torchdion/layout.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/option.h"
#include "comm/task.h"

namespace torchdion::algorithms {

struct Batch;

enum class Takes {
  matrices,  // parameters of two or more dimensions, as the group's form says
  elements,  // any parameter, entry by entry
};

// Of a parameter that is [stack..., m, n] as matrices.
enum class StateShape {
  like_parameter,
  factor,  // [stack..., m or n, r]: Q, with the m rows of Orientation::right or the n rows of Orientation::left; all
           // factors of a parameter have the same
  rows,    // [stack..., m, 1]: a number for each row, those of fused matrices one after another
};

enum class Start { zeros, normal };

enum class Holder {
  every_piece,   // who holds a piece of the parameter holds that of the state, and copies hold the same
  each_replica,  // where batches are decoupled each replica has its own; the mean over them is the state of one process
};

// What is kept of a parameter between steps, beside the count of them that each has ("step").
struct State {
  std::string_view name;
  StateShape shape = StateShape::like_parameter;
  Start start = Start::zeros;
  Holder holder = Holder::every_piece;
  std::string_view dtype_option = {};  // of the group: its dtype; none there: that of the parameter
  std::string_view rank_option = {};   // of a factor, of the group: r / min(m, n)
  int64_t draw = 0;                    // of the states that start normal, another number for each: they are independent
};

// What one rank, the owner of a matrix, does for all ranks that share it.
struct OwnedWork {
  std::vector<Axis> axes;  // among whose ranks are the owners; without any, no work is shared
  int64_t operations = 0;  // of one matrix
};

// What one task updates, by its sizes: matrices as the body of the algorithm has them, or tensors.
struct BatchShape {
  int64_t count = 0;                // matrices, or tensors, of which this rank has a piece
  int64_t numel = 0;                // entries of the pieces
  int64_t m = 0, n = 0;             // of each whole matrix
  std::vector<int64_t> ranks = {};  // r of its factors, in the order of the declaration
  int64_t rows = 0, cols = 0;       // of the pieces of matrices
  bool decoupled = false;           // replicas have states of their own
  // For each axis of OwnedWork: of the matrices whose owner is this rank as far as the axes before it tell, how many
  // each of its ranks owns. Empty: nothing is shared.
  std::vector<std::vector<int64_t>> owners = {};
  at::ScalarType parameter = at::kFloat, computing = at::kFloat;
  c10::Device device = at::kCPU;
  std::vector<at::ScalarType> states = {};
};

// What an axis carries for a batch: elements of the full tensors of this rank's collectives, as Table 2 of the paper
// counts them, and the bytes that this rank sends of them.
struct AxisCost {
  int64_t elements = 0, bytes = 0;
};

inline void add(AxisCost& total, const AxisCost& more) {
  total.elements += more.elements;
  total.bytes += more.bytes;
}

// Bytes that a rank forwards of so many that go once round a ring, as NCCL and gloo send them.
inline int64_t ring(int64_t bytes, const Axis& axis) { return bytes * (axis.size - 1) / axis.size; }

// A sum goes round twice.
inline AxisCost all_reduced(int64_t elements, int64_t element_size, const Axis& axis) {
  return {elements, ring(2 * elements * element_size, axis)};
}

// As at::Tensor::element_size().
inline int64_t element_size(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

struct Cost {
  AxisCost rows = {}, cols = {}, replicas = {}, copies = {};  // of the layout that the body sees
  int64_t operations = 0;                                     // floating-point, of products and factorizations
  int64_t memory_bytes = 0;                                   // that passes over whole matrices read and write
  int64_t workspace = 0;                                      // elements of the computing dtype
  int64_t workspace_in_flight = 0;                            // likewise, of what goes on after the step
  int64_t temporary_bytes = 0;                                // beside it, on a GPU
};

// What goes on beside a step and when it has returned, until the next one begins. Its batches have a workspace of their
// own, for as long.
struct Delayed {
  bool (*is_asked_for)(const Options& options);
  // Before the body of any batch: takes in the gradients.
  void (*take_off)(const Batch& batch, const Options& options);
  // Writes states that the body does not touch; knows neither weights nor gradients.
  comm::Task<> (*in_flight)(Batch batch, Options options);
  // After all of that, before anyone looks at states: gives what was found to those that the body has.
  void (*land)(const Batch& batch, const Options& options);
};

struct Algorithm {
  std::string_view name;   // of groups and state dicts
  std::string_view title;  // in sentences
  Takes takes = Takes::matrices;
  std::span<const Option> options;  // beside those that all have
  std::span<const State> states;
  Cost (*cost)(const BatchShape& shape, const Layout& layout, const Options& options);
  comm::Task<> (*update)(Batch batch, Options options);
  const Delayed* delayed = nullptr;  // null: a step is over when it returns
  // null: every rank does all work.
  OwnedWork (*owned_work)(const BatchShape& shape, const Layout& layout, const Options& options) = nullptr;
  // Whether its owners are also among the ranks of Layout::copies; else its body sees no such axis.
  bool shares_among_copies = false;
  // The class of a step: a batch holds only parameters whose steps have the same one, which is Batch::step. Null: all
  // may share a batch.
  int64_t (*class_of_step)(int64_t step, const Options& options) = nullptr;
  // Whether replicas of matrices whose largest pieces are rows×cols have states of their own (Holder::each_replica),
  // because they exchange something else than gradients: factors of r columns, say (ranks: those of all its factors).
  // Null: they never do.
  bool (*decouples)(int64_t rows, int64_t cols, std::span<const int64_t> ranks, const Options& options) = nullptr;
  // Throws c10::ValueError for a layout, as the body sees it, on which the options cannot be followed; null: there is
  // none. `transposed`: the body sees the transposed matrices of the parameter of this name; `decoupled`: its replicas
  // have states of their own.
  void (*check_layout)(const Layout& layout, bool transposed, bool decoupled, const Options& options,
                       const std::string& name) = nullptr;

  bool takes_matrices() const { return takes == Takes::matrices; }
  bool leaves_in_flight(const Options& options) const { return delayed && delayed->is_asked_for(options); }
};

// The index of a state among those of the algorithm; -1: it has none of this name.
int64_t index_of(const Algorithm& algorithm, std::string_view state);
// The indices of the states that are factors.
std::vector<std::size_t> factors_of(const Algorithm& algorithm);

}  // namespace torchdion::algorithms
