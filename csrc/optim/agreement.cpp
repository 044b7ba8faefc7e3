#include "optim/agreement.h"

#include <sstream>

#include "engine/agreement.h"
#include "engine/shapes.h"
#include "optim/parameters.h"
#include "optim/private.h"

namespace torchdion::optim {

namespace {

template <class Value>
std::string text(const Value& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

std::string text(const DionOptions& options) {
  std::string all;
  for (const auto& [name, value] : to_entries(options)) all += (all.empty() ? "" : ", ") + name + " " + text(value);
  return all;
}

std::string text(const Layout& layout) {
  std::string all;
  const auto add = [&](const char* side, const Axis& axis) {
    if (!axis.absent()) all += c10::str(all.empty() ? "" : ", ", side, " over '", axis.name(), "' (", axis.size, ")");
  };
  add("rows", layout.rows);
  add("columns", layout.cols);
  add("stack", layout.batch);
  add("replicas", layout.replicas);
  return all;
}

// A parameter that is cut or has replicas.
struct Shared {
  const at::Tensor& param;
  const Layout* layout;
  std::size_t group, place;
};

std::vector<Shared> shared_parameters(const Dion& optimizer, const Layouts& layouts) {
  std::vector<Shared> shared;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    const std::vector<at::Tensor>& params = optimizer.param_groups()[i].params();
    for (std::size_t k = 0; k < params.size(); ++k) {
      const Layout& layout = layout_of(layouts, params[k]);
      if (!layout.is_local()) shared.push_back({params[k], &layout, i, k});
    }
  }
  return shared;
}

engine::Claim claim_of(const Dion& optimizer, const Shared& shared) {
  const auto& [param, layout, group, place] = shared;
  const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
  const bool has_state = found != optimizer.state().end();
  const double steps = has_state ? static_cast<const DionParamState&>(*found->second).step().item<double>() : 0;
  return {parameter_name(place, group),
          {{"shape", text(engine::whole_sizes(param, *layout))},
           {"dtype", text(param.scalar_type())},
           {"options", text(options_of(optimizer.param_groups()[group], group))},
           {"layout", text(*layout)},
           {"steps taken", text(steps)}},
          {layout->rows, layout->cols, layout->batch, layout->replicas}};
}

}  // namespace

std::unordered_set<const void*> agree(const Dion& optimizer, const Layouts& layouts, bool& agreed,
                                      const std::exception_ptr& refusal) {
  const std::vector<Shared> shared = shared_parameters(optimizer, layouts);
  std::vector<Axis> every;
  for (const Shared& one : shared) {
    every.insert(every.end(), {one.layout->rows, one.layout->cols, one.layout->batch, one.layout->replicas});
  }
  std::vector<bool> has_gradient;
  std::vector<std::vector<Axis>> cuts;
  for (const Shared& one : shared) {
    has_gradient.push_back(one.param.grad().defined());
    cuts.push_back({one.layout->rows, one.layout->cols, one.layout->batch});
  }
  engine::Opening opening{refusal != nullptr, !agreed};
  try {
    opening = engine::open_step(opening, has_gradient, cuts, every);
  } catch (const std::exception&) {
    if (!refusal) throw;  // else this rank's own error says more
  }
  if (refusal) std::rethrow_exception(refusal);
  TORCH_CHECK(!opening.refused, "torchdion::Dion: another rank refused this step, and its error says why");
  if (opening.is_new) {
    std::vector<engine::Claim> claims;
    for (const Shared& one : shared) claims.push_back(claim_of(optimizer, one));
    engine::check_agreement(claims);
    agreed = true;
  }
  std::unordered_set<const void*> missing;
  if (!opening.is_uneven) return missing;
  const std::vector<bool> anywhere = engine::any_of_ranks(has_gradient, cuts);
  for (std::size_t i = 0; i < shared.size(); ++i) {
    if (anywhere[i] && !has_gradient[i]) missing.insert(shared[i].param.unsafeGetTensorImpl());
  }
  return missing;
}

}  // namespace torchdion::optim
