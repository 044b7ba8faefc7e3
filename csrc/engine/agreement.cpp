#include "engine/agreement.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>

#include "comm/copies.h"
#include "comm/line.h"
#include "engine/words.h"

namespace torchdion::engine {

namespace {

// An axis and the places of the parameters that are on it.
struct Members {
  Axis axis;
  std::vector<std::size_t> places;
};

// Sorted by name, so that ranks which do not agree on the parameters still meet along one axis after the other.
std::vector<Members> members_of(const std::vector<std::vector<Axis>>& axes) {
  std::vector<Members> all;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (const Axis& axis : axes[i]) {
      if (axis.absent()) continue;
      const auto is_same = [&](const Members& members) { return members.axis.line->group == axis.line->group; };
      auto found = std::find_if(all.begin(), all.end(), is_same);
      if (found == all.end()) found = all.insert(all.end(), {axis, {}});
      if (found->places.empty() || found->places.back() != i) found->places.push_back(i);
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Members& a, const Members& b) { return a.axis.name() < b.axis.name(); });
  return all;
}

at::Tensor integers(const std::vector<int64_t>& numbers) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

int64_t digest(const std::string& text) { return static_cast<int64_t>(std::hash<std::string>{}(text)); }

// Everything that a rank claims along an axis: name and property values of one parameter after the other.
std::vector<std::string> texts_of(const std::vector<Claim>& claims, const Members& members) {
  std::vector<std::string> texts;
  for (const std::size_t i : members.places) {
    texts.push_back(claims[i].name);
    for (const auto& [property, value] : claims[i].properties) texts.push_back(value);
  }
  return texts;
}

// The sentence for the first difference; empty where there is none. What all claim is compared first, as two numbers.
std::string difference(const std::vector<Claim>& claims, const Members& members) {
  const std::vector<std::string> texts = texts_of(claims, members);
  std::vector<int64_t> digests;
  std::string all;
  for (const std::string& text : texts) {
    digests.push_back(digest(text));
    all += text + '\n';
  }
  const std::vector<bool> differs =
      comm::differing_entries(integers({static_cast<int64_t>(texts.size()), digest(all)}), members.axis);
  const std::string who = c10::str("the ranks of the axis '", members.axis.name(), "' must ");
  if (differs[0]) return c10::str(who, "update as many parameters over it, got ", members.places.size());
  if (!differs[1]) return {};
  const std::vector<bool> each = comm::differing_entries(integers(digests), members.axis);
  const std::size_t first = std::find(each.begin(), each.end(), true) - each.begin();
  const std::size_t per_claim = texts.size() / members.places.size();
  const Claim& claim = claims[members.places[first / per_claim]];
  if (first % per_claim == 0) return c10::str(who, "have the same parameters in the same order, got ", claim.name);
  const auto& [property, value] = claim.properties[first % per_claim - 1];
  return c10::str(who, "agree on the ", property, " of ", claim.name, ", got ", value);
}

}  // namespace

Opening open_step(Opening own, const std::vector<bool>& has_gradient, const std::vector<std::vector<Axis>>& axes,
                  const std::vector<Axis>& others) {
  std::vector<std::vector<Axis>> all = axes;
  all.push_back(others);
  for (const Members& members : members_of(all)) {
    std::string present;
    for (const std::size_t i : members.places) {
      if (i < has_gradient.size()) present += has_gradient[i] ? '1' : '0';
    }
    const int64_t number = digest(present);  // the largest complement is that of the smallest
    const at::Tensor message = integers({own.refused, own.is_new, own.is_uneven, number, ~number});
    comm::max_(message, members.axis);
    const auto* largest = message.const_data_ptr<int64_t>();
    own = {largest[0] != 0, largest[1] != 0, largest[2] != 0 || largest[3] != ~largest[4]};
  }
  return own;
}

std::vector<bool> any_of_ranks(std::vector<bool> flags, const std::vector<std::vector<Axis>>& axes) {
  for (const Members& members : members_of(axes)) {
    const at::Tensor numbers = at::empty({static_cast<int64_t>(members.places.size())}, at::kByte);
    auto* values = numbers.mutable_data_ptr<uint8_t>();
    for (std::size_t k = 0; k < members.places.size(); ++k) values[k] = flags[members.places[k]];
    comm::max_(numbers, members.axis);
    for (std::size_t k = 0; k < members.places.size(); ++k) flags[members.places[k]] = values[k] != 0;
  }
  return flags;
}

void check_agreement(const std::vector<Claim>& claims) {
  std::vector<std::vector<Axis>> axes, all(1);
  for (const Claim& claim : claims) axes.push_back(claim.axes);
  std::string sentence;
  for (const Members& members : members_of(axes)) {
    const std::string found = difference(claims, members);
    if (sentence.empty()) sentence = found;
    all.front().push_back(members.axis);
  }
  if (!any_of_ranks({!sentence.empty()}, all).front()) return;
  TORCH_CHECK_VALUE(
      false, prefix(),
      sentence.empty() ? "other ranks of the job disagree about parameters, options or layouts" : sentence);
}

}  // namespace torchdion::engine
