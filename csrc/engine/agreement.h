// What ranks must agree on before they communicate: a disagreement is an error on all of them, not a hang, and no
// collective ever moves pieces of different things.
#pragma once

#include <c10/core/ScalarType.h>
#include <torchdion/layout.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/parameter.h"

namespace torchdion::engine {

// What ranks do together, each of which begins with one message along the same axes.
enum class Operation {
  step,
  resize_rank,
  synchronize_for_checkpoint,
  check_replicas,
  synchronize_replicas,
  whole_state_dict,
};

// Names and values, the same names on all ranks.
using Properties = std::vector<std::pair<std::string, std::string>>;

// What a rank takes a parameter for, a parameter group, or the optimizer.
struct Claim {
  std::string name;
  Properties properties;
  std::vector<Axis> axes;  // along which ranks must claim the same
  bool is_parameter = true;
  std::optional<c10::ScalarType> gradient = {};  // that this rank has of the parameter
  std::vector<Axis> shared = {};                 // along which a missing gradient is zero where another rank has one
};

// Of the optimizer, whose properties are given, of the groups of these parameters, then of each parameter. `copies`: of
// other ranks that have everything. A step makes what is not there; what else ranks do, they do with what is.
//
// From one operation to the next they are kept, and made again only where what they say has changed: a step whose
// parameters lie as they did counts steps, no more.
class Claims {
 public:
  // Valid until the next call.
  const std::vector<Claim>& of(const std::vector<const ParameterView*>& parameters,
                               const std::vector<ParameterGroup>& groups, Properties optimizer, Operation operation,
                               const Axis& copies);

 private:
  bool are_of(const std::vector<std::size_t>& indices, const std::vector<ParameterGroup>& groups,
              std::size_t parameters, Operation operation, const Axis& copies) const;

  std::vector<Claim> all_;
  std::vector<std::size_t> groups_;           // the indices of those that parameters are in
  std::vector<algorithms::Options> options_;  // of these, as the claims of parameters have them
  std::vector<std::vector<int64_t>> known_;   // of each parameter, what its claim was made of
  Operation operation_ = Operation::step;
  Axis copies_;
};

// This rank's copy of a parameter that must be equal on all ranks of an axis.
struct Copy {
  std::size_t claim;  // the parameter's
  Axis axis;
  int64_t digest;
};

// How ranks compare what they hold copies of.
struct Comparison {
  bool is_due = false;  // where it is on any rank, all compare
  // The same parameters on all ranks of an axis, whether it is due or not; may throw on this rank alone.
  std::function<std::vector<Copy>()> copies = {};
};

// Called with the gradients that agree() returns; may throw on this rank alone.
using Provide = std::function<void(const std::vector<std::optional<c10::ScalarType>>&)>;

// The result, claim by claim.
struct Agreed {
  std::vector<std::optional<c10::ScalarType>> gradients;  // the dtype that any of its `shared` ranks has
  std::vector<bool> apart;  // whether ranks hold unequal copies of the parameter; empty: no ranks of the job do
};

// One message of fixed size along each axis of the claims, with digests of them, so that ranks which disagree get an
// answer too; a few more where any digests of the job differ. Waits for the ranks of all axes, which are those of a
// grid: what one rank says reaches all. Every rank calls `provide` where any rank lacks a gradient that another
// one has, to check and allocate what it then needs, and hears whether all could. Copies that differ are no error.
//
// Throws on every rank of the axes: c10::Error where one `refuses` (its own error says why, and this one is for it to
// forget), where its `provide` or `copies` threw (which goes on there) or where ranks began different operations,
// c10::ValueError where claims or the dtypes of gradients differ, with a sentence that names what differs.
Agreed agree(Operation operation, bool refuses, const std::vector<Claim>& claims, const Provide& provide = {},
             const Comparison& comparison = {});

// The warning about parameters whose copies differ: all get those of the first replica.
std::string sentence_of_apart(const std::vector<std::string>& names);

}  // namespace torchdion::engine
