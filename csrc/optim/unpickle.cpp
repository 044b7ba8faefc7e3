#include "optim/unpickle.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "optim/saved_tensor.h"

namespace torchdion::optim {

namespace {

using c10::IValue;

constexpr std::size_t kLargestPickle = std::size_t{1} << 28;  // bytes: 300,000 parameters have about as many
constexpr std::size_t kMostContainers = 10'000'000;
constexpr uint64_t kMostRepeated = 1'000'000;  // values that a walk meets more often than the pickle names them

// What a pickle names of Python's: the callables of torch.save(), and types of storages.
struct Name : torch::CustomClassHolder {
  explicit Name(std::string text) : text(std::move(text)) {}
  std::string text;
};

// A place on the stack. A list or dict may change only in its first place there, and only until something refers to it:
// so none comes to hold itself. The entries of a dict are a list as long as it may change.
struct Value {
  enum Kind : uint8_t { value, mark, list, dict };

  IValue what;
  Kind kind = value;
  bool is_open = false;   // a list or dict that may change
  bool is_inner = false;  // a name or storage, or holds one: no part of the result
  uint8_t depth = 0;
  uint64_t size = 1;      // as a tree
  int64_t memo_key = -1;  // where it was put as long as it was open
};

struct Memo {
  Value value;
  std::size_t place;  // where it was on the stack, and is as long as it is open
};

class Unpickling {
 public:
  Unpickling(std::string_view pickled, const ReadStorage& read_storage)
      : left_(pickled), size_(pickled.size()), tensors_(read_storage) {}

  IValue run() {
    for (char operation = byte(); operation != '.'; operation = byte()) {
      const bool known = push_scalar(operation) || use_memo(operation) || build(operation) || call(operation);
      TORCH_CHECK(known, "its pickle has an operation that torch.save() does not use: ",
                  static_cast<int>(static_cast<unsigned char>(operation)));
    }
    const Value result = pop();
    TORCH_CHECK(!result.is_inner && stack_.empty() && left_.empty(), "its pickle is damaged");
    return result.what;
  }

 private:
  std::string_view bytes(std::size_t count) {
    TORCH_CHECK(count <= left_.size(), "its pickle is cut short");
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }

  char byte() { return bytes(1)[0]; }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string line() {
    const std::size_t end = left_.find('\n');
    TORCH_CHECK(end != std::string_view::npos && end <= 200, "its pickle is cut short");
    const std::string text(bytes(end));
    byte();
    return text;
  }

  void push(IValue what) { stack_.push_back({std::move(what)}); }

  // From here on a list or dict changes no more.
  void close(Value& container) {
    if (!container.is_open) return;
    if (container.kind == Value::dict) container.what = dict_of(container.what.toList());
    container.is_open = false;
    if (container.memo_key >= 0) memo_[static_cast<uint32_t>(container.memo_key)].value = container;
  }

  Value pop() {
    TORCH_CHECK(!stack_.empty() && stack_.back().kind != Value::mark, "its pickle is damaged");
    close(stack_.back());
    Value top = std::move(stack_.back());
    stack_.pop_back();
    return top;
  }

  std::vector<Value> pop_to_mark() {
    std::vector<Value> values;
    while (!stack_.empty() && stack_.back().kind != Value::mark) values.push_back(pop());
    TORCH_CHECK(!stack_.empty(), "its pickle is damaged");
    stack_.pop_back();
    std::reverse(values.begin(), values.end());
    return values;
  }

  std::vector<Value> pop_many(std::size_t count) {
    std::vector<Value> values;
    while (count-- > 0) values.push_back(pop());
    std::reverse(values.begin(), values.end());
    return values;
  }

  void put_into(Value& container, const Value& part) {
    container.depth = std::max<uint8_t>(container.depth, part.depth + 1);
    container.size += part.size;
    container.is_inner = container.is_inner || part.is_inner;
    TORCH_CHECK(container.depth <= kDeepest, "its containers are nested more than ", kDeepest, " deep");
    TORCH_CHECK(container.size <= size_ + kMostRepeated, "its containers hold each other too many times");
  }

  void push_container(Value::Kind kind) {
    TORCH_CHECK(++containers_ <= kMostContainers, "it holds more than ", kMostContainers, " containers");
    stack_.push_back({c10::impl::GenericList(c10::AnyType::get()), kind, /*is_open=*/true});
  }

  void push_tuple(const std::vector<Value>& parts) {
    TORCH_CHECK(++containers_ <= kMostContainers, "it holds more than ", kMostContainers, " containers");
    Value tuple;
    std::vector<IValue> elements;
    for (const Value& part : parts) {
      put_into(tuple, part);
      elements.push_back(part.what);
    }
    tuple.what = c10::ivalue::Tuple::create(std::move(elements));
    stack_.push_back(std::move(tuple));
  }

  void extend(Value::Kind kind, const std::vector<Value>& parts) {
    TORCH_CHECK(!stack_.empty() && stack_.back().kind == kind, "its pickle is damaged");
    TORCH_CHECK(stack_.back().is_open, "a container holds itself, or changes after something referred to it");
    Value& container = stack_.back();
    TORCH_CHECK(kind != Value::dict || parts.size() % 2 == 0, "its pickle is damaged");
    c10::List<IValue> list = container.what.toList();
    for (const Value& part : parts) {
      TORCH_CHECK(!part.is_inner, "it holds ", part.what.isCapsule() ? text_of(part.what) : "an object",
                  " where a value is due");
      put_into(container, part);
      list.push_back(part.what);
    }
  }

  // The hash table of a c10::Dict doubles until no place is far from its due one: keys that share theirs, which anyone
  // can make, would have it fill the memory.
  static c10::impl::GenericDict dict_of(const c10::List<IValue>& entries) {
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

  bool push_scalar(char operation) {
    switch (operation) {
      case '\x80':
        TORCH_CHECK(number<uint8_t>() == 2, "its pickle is of another protocol than torch.save()'s");
        return true;
      case 'N':
        return push(IValue()), true;
      case '\x88':
        return push(true), true;
      case '\x89':
        return push(false), true;
      case 'J':
        return push(int64_t{number<int32_t>()}), true;
      case 'K':
        return push(int64_t{number<uint8_t>()}), true;
      case 'M':
        return push(int64_t{number<uint16_t>()}), true;
      case '\x8a':
        return push(long_integer()), true;
      case 'G':
        return push(std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()))), true;
      case 'X':
        return push(std::string(bytes(number<uint32_t>()))), true;
      default:
        return false;
    }
  }

  // Two's complement of any length.
  int64_t long_integer() {
    const std::string_view digits = bytes(number<uint8_t>());
    TORCH_CHECK(digits.size() <= sizeof(int64_t), "it holds an integer of more than 64 bits");
    int64_t value = !digits.empty() && static_cast<signed char>(digits.back()) < 0 ? -1 : 0;
    std::memcpy(&value, digits.data(), digits.size());
    return value;
  }

  bool use_memo(char operation) {
    switch (operation) {
      case 'q':
        return put(number<uint8_t>()), true;
      case 'r':
        return put(number<uint32_t>()), true;
      case 'h':
        return get(number<uint8_t>()), true;
      case 'j':
        return get(number<uint32_t>()), true;
      default:
        return false;
    }
  }

  void put(uint32_t key) {
    TORCH_CHECK(!stack_.empty() && stack_.back().kind != Value::mark, "its pickle is damaged");
    Value& top = stack_.back();
    const bool is_new = memo_.emplace(key, Memo{top, stack_.size() - 1}).second;
    TORCH_CHECK(is_new && top.memo_key < 0, "its pickle is damaged");
    top.memo_key = key;
  }

  void get(uint32_t key) {
    const auto found = memo_.find(key);
    TORCH_CHECK(found != memo_.end(), "its pickle refers to an object that it does not hold");
    const Memo& memo = found->second;
    if (memo.value.is_open) close(stack_[memo.place]);
    stack_.push_back(memo.value);
  }

  bool build(char operation) {
    switch (operation) {
      case '(':
        return stack_.push_back({IValue(), Value::mark}), true;
      case ']':
        return push_container(Value::list), true;
      case '}':
        return push_container(Value::dict), true;
      case ')':
        return push_tuple({}), true;
      case 't':
        return push_tuple(pop_to_mark()), true;
      case '\x85':
      case '\x86':
      case '\x87':
        return push_tuple(pop_many(static_cast<unsigned char>(operation) - 0x84)), true;
      case 'a':
        return extend(Value::list, pop_many(1)), true;
      case 'e':
        return extend(Value::list, pop_to_mark()), true;
      case 's':
        return extend(Value::dict, pop_many(2)), true;
      case 'u':
        return extend(Value::dict, pop_to_mark()), true;
      case 'b':  // attributes of an OrderedDict, such as the versions of a module's state
        pop();
        TORCH_CHECK(!stack_.empty() && stack_.back().kind == Value::dict, "its pickle is damaged");
        return true;
      default:
        return false;
    }
  }

  static std::vector<IValue> sizes_of(const IValue& tuple) {
    const std::vector<int64_t> sizes = SavedTensors::integers(tuple);
    return {sizes.begin(), sizes.end()};
  }

  static std::string text_of(const IValue& capsule) {
    const auto holder = capsule.toCapsule();
    const auto* name = dynamic_cast<const Name*>(holder.get());
    return name ? name->text : "a storage";
  }

  void push_inner(c10::intrusive_ptr<torch::CustomClassHolder> holder) {
    Value inner{IValue::make_capsule(std::move(holder))};
    inner.is_inner = true;
    stack_.push_back(std::move(inner));
  }

  bool call(char operation) {
    if (operation == 'c') {
      const std::string module = line();
      push_inner(c10::make_intrusive<Name>(module + "." + line()));
    } else if (operation == 'Q') {
      push_storage(pop());
    } else if (operation == 'R') {
      const Value arguments = pop(), callable = pop();
      TORCH_CHECK(callable.what.isCapsule() && arguments.what.isTuple(), "its pickle is damaged");
      reduce(text_of(callable.what), arguments.what.toTupleRef().elements().vec());
    } else {
      return false;
    }
    return true;
  }

  // ("storage", type, name of the record, device, number of elements)
  void push_storage(const Value& id) {
    TORCH_CHECK(id.what.isTuple(), "its pickle is damaged");
    const std::vector<IValue> parts = id.what.toTupleRef().elements().vec();
    TORCH_CHECK(parts.size() == 5 && parts[1].isCapsule() && parts[2].isString() && parts[4].isInt(),
                "its pickle is damaged");
    push_inner(tensors_.storage(text_of(parts[1]), parts[2].toStringRef(), parts[4].toInt()));
  }

  void reduce(const std::string& callable, const std::vector<IValue>& arguments) {
    if (callable == "collections.OrderedDict" && arguments.empty()) return push_container(Value::dict);
    if (callable == "torch._utils._rebuild_tensor_v2") return push(tensors_.tensor(arguments));
    if (callable == "torch._utils._rebuild_parameter") return push(tensors_.parameter(arguments));
    if ((callable == "builtins.complex" || callable == "__builtin__.complex") && arguments.size() == 2 &&
        arguments[0].isDouble() && arguments[1].isDouble()) {
      return push(c10::complex<double>(arguments[0].toDouble(), arguments[1].toDouble()));
    }
    if (callable == "torch.Size" && arguments.size() == 1)
      return push(c10::ivalue::Tuple::create(sizes_of(arguments[0])));
    TORCH_CHECK(false, "it holds an object of ", callable,
                "; there may be tensors, numbers, strings and containers of them");
  }

  std::string_view left_;
  std::size_t size_, containers_ = 0;
  SavedTensors tensors_;
  std::vector<Value> stack_;
  std::unordered_map<uint32_t, Memo> memo_;
};

}  // namespace

IValue unpickle(std::string_view pickled, const ReadStorage& read_storage) {
  TORCH_CHECK(pickled.size() <= kLargestPickle, "its pickle is larger than ", kLargestPickle, " bytes");
  return Unpickling(pickled, read_storage).run();
}

}  // namespace torchdion::optim
