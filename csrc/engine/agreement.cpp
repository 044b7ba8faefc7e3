#include "engine/agreement.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "comm/blocking.h"
#include "comm/line.h"
#include "words.h"

namespace torchdion::engine {

namespace {

using Gradient = std::optional<c10::ScalarType>;

// An axis and the indices of the claims that are on it.
struct Members {
  Axis axis;
  std::vector<std::size_t> indices;
};

// Sorted by name, so that ranks which do not agree on the parameters still meet along one axis after the other.
std::vector<Members> members_of(const std::vector<Claim>& claims, std::vector<Axis> Claim::*axes = &Claim::axes) {
  std::vector<Members> all;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    for (const Axis& axis : claims[i].*axes) {
      if (axis.absent()) continue;
      const auto is_same = [&](const Members& members) { return members.axis.line->group == axis.line->group; };
      auto found = std::ranges::find_if(all, is_same);
      if (found == all.end()) found = all.insert(all.end(), {axis, {}});
      if (found->indices.empty() || found->indices.back() != i) found->indices.push_back(i);
    }
  }
  std::ranges::stable_sort(all, {}, [](const Members& members) -> const std::string& { return members.axis.name(); });
  return all;
}

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::step:
      return "step()";
    case Operation::resize_rank:
      return "resize_rank()";
    case Operation::synchronize_for_checkpoint:
      return "synchronize_for_checkpoint()";
    case Operation::check_replicas:
      return "check_replicas()";
    case Operation::synchronize_replicas:
      return "synchronize_replicas()";
    case Operation::whole_state_dict:
      return "whole_state_dict()";
  }
  return "something else";
}

at::Tensor integers(const std::vector<int64_t>& numbers) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

// 0 for none, so that the largest of ranks is one that some rank has.
uint8_t code_of(const Gradient& gradient) { return gradient ? 1 + static_cast<uint8_t>(*gradient) : 0; }
Gradient gradient_of(uint8_t code) { return code ? Gradient(static_cast<c10::ScalarType>(code - 1)) : std::nullopt; }

// A text that a rank claims: the name of a claim, or the value of one of its properties.
struct Text {
  const std::string* text;
  const Claim* claim;
  const std::string* property;  // null: the name
};

std::vector<Text> texts_of(const std::vector<Claim>& claims, const Members& members) {
  std::vector<Text> texts;
  for (const std::size_t i : members.indices) {
    texts.push_back({&claims[i].name, &claims[i], nullptr});
    for (const auto& [property, value] : claims[i].properties) texts.push_back({&value, &claims[i], &property});
  }
  return texts;
}

std::string joined(const std::vector<Text>& texts) {
  std::string all;
  for (const Text& text : texts) (all += *text.text) += '\n';
  return all;
}

// Includes the copies of the same axis where they are compared.
int64_t digest_of_claims(const std::vector<Claim>& claims, const Members& members, const std::vector<Copy>& copies) {
  std::string all = joined(texts_of(claims, members));
  for (const Copy& copy : copies) {
    if (copy.axis.line->group == members.axis.line->group) all += c10::str(copy.digest, '\n');
  }
  return comm::digest(all);
}

int64_t digest_of_gradients(const std::vector<Claim>& claims, const Members& members) {
  std::string codes;
  for (const std::size_t i : members.indices) codes += static_cast<char>(code_of(claims[i].gradient));
  return comm::digest(codes);
}

// What ranks compare along one axis.
struct Digests {
  int64_t claimed, gradients;
};

// What any of the ranks says: what it does, and how it compares with the others.
struct Opening {
  bool refused = false, differs = false, is_uneven = false;
  int64_t last, first;        // of the operations that ranks began, by their numbers
  int64_t largest, smallest;  // of the ranks' digests of all that they compare

  // With the ranks of an axis, and with what they compare along it.
  void exchange(const Axis& axis, const std::optional<Digests>& own = {}) {
    // The largest complement is that of the smallest.
    std::vector<int64_t> numbers{refused, differs, is_uneven, last, ~first, largest, ~smallest};
    if (own) numbers.insert(numbers.end(), {own->claimed, ~own->claimed, own->gradients, ~own->gradients});
    const at::Tensor message = integers(numbers);
    comm::max_(message, axis);
    const auto* all = message.const_data_ptr<int64_t>();
    *this = {all[0] != 0, all[1] != 0, all[2] != 0, all[3], ~all[4], all[5], ~all[6]};
    if (!own) return;
    differs = differs || all[7] != ~all[8];
    is_uneven = is_uneven || all[9] != ~all[10];
  }
};

Opening open(Operation operation, bool refuses, const std::vector<Claim>& claims, const std::vector<Copy>& copies,
             const std::vector<Members>& axes) {
  const auto own = static_cast<int64_t>(operation);
  std::vector<Digests> digests;
  std::string all_of_them;
  for (const Members& members : axes) {
    const Digests each{digest_of_claims(claims, members, copies), digest_of_gradients(claims, members)};
    all_of_them += c10::str(members.axis.name(), ' ', each.claimed, ' ', each.gradients, '\n');
    digests.push_back(each);
  }
  const int64_t everything = comm::digest(all_of_them);
  Opening all{refuses, false, false, own, own, everything, everything};
  for (std::size_t i = 0; i < axes.size(); ++i) all.exchange(axes[i].axis, digests[i]);
  // By now every rank knows what all began with. A difference that only a later axis showed goes back along the earlier
  // ones; where all compare equal there is none.
  if (all.largest == all.smallest) return all;
  for (auto members = axes.rbegin(); members != axes.rend(); ++members) all.exchange(members->axis);
  return all;
}

// The sentence for the first difference; empty where there is none.
std::string difference(const std::vector<Claim>& claims, const Members& members) {
  const std::vector<Text> texts = texts_of(claims, members);
  const std::vector<bool> differs = comm::differing_entries(
      integers({static_cast<int64_t>(texts.size()), comm::digest(joined(texts))}), members.axis);
  const std::string who = c10::str("the ranks of the axis '", members.axis.name(), "' must ");
  if (differs[0]) {
    const auto count = std::ranges::count_if(members.indices, [&](std::size_t i) { return claims[i].is_parameter; });
    return c10::str(who, "update as many parameters over it, got ", count);
  }
  if (!differs[1]) return {};
  std::vector<int64_t> digests;
  for (const Text& text : texts) digests.push_back(comm::digest(*text.text));
  const std::vector<bool> each = comm::differing_entries(integers(digests), members.axis);
  const Text& first = texts[std::find(each.begin(), each.end(), true) - each.begin()];
  if (!first.property) return c10::str(who, "have the same parameters in the same order, got ", first.claim->name);
  return c10::str(who, "agree on the ", *first.property, " of ", first.claim->name, ", got ", *first.text);
}

// The largest codes of all ranks along the axes that a missing gradient is made up along.
std::vector<uint8_t> largest_of_ranks(const std::vector<Claim>& claims, std::vector<uint8_t> codes,
                                      std::vector<Axis> Claim::*axes) {
  for (const Members& members : members_of(claims, axes)) {
    const at::Tensor numbers = at::empty({static_cast<int64_t>(members.indices.size())}, at::kByte);
    auto* values = numbers.mutable_data_ptr<uint8_t>();
    for (std::size_t k = 0; k < members.indices.size(); ++k) values[k] = codes[members.indices[k]];
    comm::max_(numbers, members.axis);
    for (std::size_t k = 0; k < members.indices.size(); ++k) codes[members.indices[k]] = values[k];
  }
  return codes;
}

// Whether it is so on any rank.
bool is_anywhere(bool here, const std::vector<Members>& axes) {
  Claim all;
  for (const Members& members : axes) all.axes.push_back(members.axis);
  return largest_of_ranks({all}, {here}, &Claim::axes).front() != 0;
}

// Compares the claims of all ranks, one by one along each axis.
void check_equal(const std::vector<Claim>& claims) {
  const std::vector<Members> axes = members_of(claims);
  std::string sentence;
  for (const Members& members : axes) {
    const std::string found = difference(claims, members);
    if (sentence.empty()) sentence = found;
  }
  if (!is_anywhere(!sentence.empty(), axes)) return;
  TORCH_CHECK_VALUE(
      false, prefix(),
      sentence.empty() ? "other ranks of the job disagree about parameters, options or layouts" : sentence);
}

// Ranks that have none take the dtype of those that do, which must all have the same.
std::vector<uint8_t> agree_on_gradients(const std::vector<Claim>& claims, const std::vector<uint8_t>& own) {
  const std::vector<uint8_t> codes = largest_of_ranks(claims, own, &Claim::shared);
  std::vector<Claim> gradients;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const Gradient gradient = gradient_of(own[i] ? own[i] : codes[i]);
    const std::string dtype(gradient ? shown(*gradient) : "none");
    gradients.push_back({claims[i].name, {{"dtype of the gradient", dtype}}, claims[i].axes});
  }
  check_equal(gradients);
  return codes;
}

void check_none_refused(bool refused, Operation operation) {
  TORCH_CHECK(!refused, prefix(), "another rank refused ",
              operation == Operation::step ? "this step" : name_of(operation), ", and its error says why");
}

// The call may throw on this rank alone; `tell` lets the others know.
template <class Call, class Tell>
void call_or_tell(const Call& call, const Tell& tell) {
  try {
    call();
  } catch (...) {
    try {
      tell();
    } catch (const std::exception&) {  // this rank's own error says more
    }
    throw;
  }
}

// For checks that ranks make only after the opening: all hear of a failure before any goes on.
template <class Call>
void call_on_all(const Call& call, Operation operation, const std::vector<Members>& axes) {
  call_or_tell(call, [&] { is_anywhere(true, axes); });
  check_none_refused(is_anywhere(false, axes), operation);
}

// Agreed::apart.
std::vector<bool> apart(const std::vector<Claim>& claims, const std::vector<Copy>& copies,
                        const std::vector<Members>& axes) {
  std::vector<Claim> each;
  for (const Copy& copy : copies) each.push_back({claims[copy.claim].name, {}, {copy.axis}});
  std::vector<uint8_t> codes(claims.size());
  for (const Members& members : members_of(each)) {
    std::vector<int64_t> digests;
    for (const std::size_t i : members.indices) digests.push_back(copies[i].digest);
    const std::vector<bool> differs = comm::differing_entries(integers(digests), members.axis);
    for (std::size_t k = 0; k < digests.size(); ++k) codes[copies[members.indices[k]].claim] |= differs[k];
  }
  codes = largest_of_ranks(claims, codes, &Claim::axes);
  if (!is_anywhere(std::ranges::any_of(codes, [](uint8_t code) { return code != 0; }), axes)) return {};
  return {codes.begin(), codes.end()};
}

}  // namespace

Agreed agree(Operation operation, bool refuses, const std::vector<Claim>& claims, const Provide& provide,
             const Comparison& comparison) {
  const std::vector<Members> axes = members_of(claims);
  std::vector<Copy> copies;
  const auto compute = [&] { copies = comparison.copies(); };
  if (comparison.is_due) call_or_tell(compute, [&] { open(operation, /*refuses=*/true, claims, {}, axes); });
  const Opening all = open(operation, refuses, claims, copies, axes);
  const int64_t own = static_cast<int64_t>(operation), other = all.last != own ? all.last : all.first;
  TORCH_CHECK(other == own, prefix(), "every rank must call the same at the same time, got ", name_of(operation),
              " here and ", name_of(static_cast<Operation>(other)), " on another rank");
  check_none_refused(all.refused, operation);
  if (all.differs) check_equal(claims);
  std::vector<uint8_t> codes;
  for (const Claim& claim : claims) codes.push_back(code_of(claim.gradient));
  if (all.is_uneven) codes = agree_on_gradients(claims, codes);
  Agreed agreed;
  for (const uint8_t code : codes) agreed.gradients.push_back(gradient_of(code));
  if (all.is_uneven && provide) call_on_all([&] { provide(agreed.gradients); }, operation, axes);
  if (all.differs && comparison.copies) {  // not in what they claim
    const auto compute_missing = [&] {
      if (!comparison.is_due) compute();
    };
    call_on_all(compute_missing, operation, axes);
    agreed.apart = apart(claims, copies, axes);
  }
  return agreed;
}

std::string sentence_of_apart(const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 5;
  std::string all;
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i) all += (i ? ", " : "") + names[i];
  if (names.size() > kNamed) all += c10::str(" and ", names.size() - kNamed, " more");
  return c10::str(prefix(), "replicas must start alike, and differ in ", all,
                  "; all get the first one's weights and states now, as synchronize_replicas() before the first "
                  "backward pass gives them");
}

}  // namespace torchdion::engine
