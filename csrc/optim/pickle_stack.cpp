#include "optim/pickle_stack.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <bit>

namespace torchdion::optim {

namespace {

using c10::IValue;

constexpr std::size_t kMostContainers = 10'000'000;
constexpr uint64_t kMostRepeated = 1'000'000;  // values that a walk meets more often than the pickle names them

// The hash table of a c10::Dict doubles until no place is far from its due one: keys that share theirs, which anyone
// can make, would have it fill the memory.
c10::impl::GenericDict dict_of(const c10::List<IValue>& entries) {
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  const int shift = 64 - std::bit_width(entries.size()) - 2;
  std::vector<uint64_t> places;
  for (std::size_t i = 0; i < entries.size(); i += 2) {
    const IValue key = entries.get(i);
    const bool is_key = key.isString() || key.isInt() || key.isBool() || key.isDouble();
    TORCH_CHECK(is_key, "a key of a dict must be a string or a number, got ", key.tagKind());
    places.push_back(c10::detail::DictKeyHash()(key) * 11400714819323198485ull >> shift);
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 6; i < places.size(); ++i) {
    TORCH_CHECK(places[i] != places[i - 6], "the keys of a dict are made to collide");
  }
  for (std::size_t i = 0; i < entries.size(); i += 2) dict.insert_or_assign(entries.get(i), entries.get(i + 1));
  return dict;
}

}  // namespace

std::string name_in(const IValue& capsule) {
  const auto holder = capsule.toCapsule();
  const auto* name = dynamic_cast<const Name*>(holder.get());
  return name ? name->text : "a storage";
}

// From here on a list or dict changes no more.
void PickleStack::close(Value& container) {
  if (!container.is_open) return;
  if (container.kind == Value::dict) container.what = dict_of(container.what.toList());
  container.is_open = false;
  if (container.memo_key >= 0) memo_[static_cast<uint32_t>(container.memo_key)].value = container;
}

Value PickleStack::pop() {
  TORCH_CHECK(!values_.empty() && values_.back().kind != Value::mark, "its pickle is damaged");
  close(values_.back());
  Value top = std::move(values_.back());
  values_.pop_back();
  return top;
}

std::vector<Value> PickleStack::pop_to_mark() {
  std::vector<Value> values;
  while (!values_.empty() && values_.back().kind != Value::mark) values.push_back(pop());
  TORCH_CHECK(!values_.empty(), "its pickle is damaged");
  values_.pop_back();
  std::reverse(values.begin(), values.end());
  return values;
}

std::vector<Value> PickleStack::pop_many(std::size_t count) {
  std::vector<Value> values;
  while (count-- > 0) values.push_back(pop());
  std::reverse(values.begin(), values.end());
  return values;
}

void PickleStack::put_into(Value& container, const Value& part) const {
  container.depth = std::max<uint8_t>(container.depth, part.depth + 1);
  container.size += part.size;
  container.is_inner = container.is_inner || part.is_inner;
  TORCH_CHECK(container.depth <= kDeepest, "its containers are nested more than ", kDeepest, " deep");
  TORCH_CHECK(container.size <= size_ + kMostRepeated, "its containers hold each other too many times");
}

void PickleStack::count_container() {
  TORCH_CHECK(++containers_ <= kMostContainers, "it holds more than ", kMostContainers, " containers");
}

void PickleStack::push_container(Value::Kind kind) {
  count_container();
  values_.push_back({c10::impl::GenericList(c10::AnyType::get()), kind, /*is_open=*/true});
}

void PickleStack::push_tuple(const std::vector<Value>& parts) {
  count_container();
  Value tuple;
  std::vector<IValue> elements;
  for (const Value& part : parts) {
    put_into(tuple, part);
    elements.push_back(part.what);
  }
  tuple.what = c10::ivalue::Tuple::create(std::move(elements));
  values_.push_back(std::move(tuple));
}

void PickleStack::extend(Value::Kind kind, const std::vector<Value>& parts) {
  TORCH_CHECK(!values_.empty() && values_.back().kind == kind, "its pickle is damaged");
  TORCH_CHECK(values_.back().is_open, "a container holds itself, or changes after something referred to it");
  Value& container = values_.back();
  TORCH_CHECK(kind != Value::dict || parts.size() % 2 == 0, "its pickle is damaged");
  c10::List<IValue> list = container.what.toList();
  for (const Value& part : parts) {
    TORCH_CHECK(!part.is_inner, "it holds ", part.what.isCapsule() ? name_in(part.what) : "an object",
                " where a value is due");
    put_into(container, part);
    list.push_back(part.what);
  }
}

void PickleStack::put(uint32_t key) {
  TORCH_CHECK(!values_.empty() && values_.back().kind != Value::mark, "its pickle is damaged");
  Value& top = values_.back();
  const bool is_new = memo_.emplace(key, Memo{top, values_.size() - 1}).second;
  TORCH_CHECK(is_new && top.memo_key < 0, "its pickle is damaged");
  top.memo_key = key;
}

void PickleStack::get(uint32_t key) {
  const auto found = memo_.find(key);
  TORCH_CHECK(found != memo_.end(), "its pickle refers to an object that it does not hold");
  const Memo& memo = found->second;
  if (memo.value.is_open) close(values_[memo.place]);
  values_.push_back(memo.value);
}

void PickleStack::push_inner(c10::intrusive_ptr<torch::CustomClassHolder> holder) {
  Value inner{IValue::make_capsule(std::move(holder))};
  inner.is_inner = true;
  values_.push_back(std::move(inner));
}

}  // namespace torchdion::optim
