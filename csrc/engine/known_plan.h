// The plan of the last step, for a next one that differs from it in nothing but addresses, numbers and rates: most do.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/groups.h"
#include "engine/plan.h"

namespace torchdion::engine {

class KnownPlan {
 public:
  // Takes the plan of a step that was found good.
  void know(const Groups& groups, std::shared_ptr<Plan> plan);
  void forget() { plan_ = nullptr; }
  // The plan, where these groups would be found good too and have the same one; null where they must be asked. Asks
  // whether there is memory behind their tensors.
  std::shared_ptr<const Plan> plan_of(const Groups& groups);

 private:
  // What a plan depends on beside tensors.
  struct KnownGroup {
    const algorithms::Algorithm* algorithm;
    algorithms::Options options;
    std::vector<Layout> layouts;
    std::vector<std::vector<std::vector<int64_t>>> whole_factors;
  };

  bool take_classes_of_steps(const Groups& groups);

  std::shared_ptr<Plan> plan_;  // null: none is known
  std::vector<KnownGroup> groups_;
  std::vector<int64_t> kinds_;  // of all tensors, see known_plan.cpp
  bool capturable_ = false;
  int threads_ = 0;
};

}  // namespace torchdion::engine
