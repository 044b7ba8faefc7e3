// The stack and the memo of a pickle's machine. What they hold has no cycles, is no deeper than kDeepest and, walked as
// a tree, bounded by the pickle's size. Everything that is not so throws c10::Error with the reason.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torchdion::optim {

// Containers in containers.
constexpr int kDeepest = 100;

// What a pickle names of Python's: the callables of torch.save(), and types of storages.
struct Name : torch::CustomClassHolder {
  explicit Name(std::string text) : text(std::move(text)) {}
  std::string text;
};

std::string name_in(const c10::IValue& capsule);

// A place on the stack. A list or dict may change only in its first place there, and only until something refers to it:
// so none comes to hold itself. The entries of a dict are a list as long as it may change.
struct Value {
  enum Kind : uint8_t { value, mark, list, dict };

  c10::IValue what;
  Kind kind = value;
  bool is_open = false;   // a list or dict that may change
  bool is_inner = false;  // a name or storage, or holds one: no part of the result
  uint8_t depth = 0;
  uint64_t size = 1;      // as a tree
  int64_t memo_key = -1;  // where it was put as long as it was open
};

class PickleStack {
 public:
  // Of a pickle of so many bytes.
  explicit PickleStack(std::size_t size) : size_(size) {}

  bool empty() const { return values_.empty(); }
  bool has_on_top(Value::Kind kind) const { return !empty() && values_.back().kind == kind; }

  void push(c10::IValue what) { values_.push_back({std::move(what)}); }
  void push_mark() { values_.push_back({c10::IValue(), Value::mark}); }
  void push_inner(c10::intrusive_ptr<torch::CustomClassHolder> holder);
  void push_container(Value::Kind kind);  // an empty list or dict
  void push_tuple(const std::vector<Value>& parts);

  Value pop();
  std::vector<Value> pop_many(std::size_t count);
  std::vector<Value> pop_to_mark();

  // Puts more into the list or dict on top.
  void extend(Value::Kind kind, const std::vector<Value>& parts);

  // Gives what is on top a number, and pushes what has one.
  void put(uint32_t key);
  void get(uint32_t key);

 private:
  struct Memo {
    Value value;
    std::size_t place;  // where it was on the stack, and is as long as it is open
  };

  void close(Value& container);
  void put_into(Value& container, const Value& part) const;
  void count_container();

  std::size_t size_, containers_ = 0;
  std::vector<Value> values_;
  std::unordered_map<uint32_t, Memo> memo_;
};

}  // namespace torchdion::optim
