#include "optim/unpickle.h"

#include <bit>
#include <cstring>
#include <vector>

#include "optim/pickle_stack.h"

namespace torchdion::optim {

namespace {

using c10::IValue;

constexpr std::size_t kLargestPickle = std::size_t{1} << 28;  // bytes: 300,000 parameters have about as many

class Unpickling {
 public:
  Unpickling(std::string_view pickled, const ReadStorage& read_storage)
      : left_(pickled), tensors_(read_storage), stack_(pickled.size()) {}

  IValue run() {
    for (char operation = byte(); operation != '.'; operation = byte()) push_value(operation);
    const Value result = stack_.pop();
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

  // Scalars, and what was put into the memo.
  void push_value(char operation) {
    switch (operation) {
      case '\x80':
        TORCH_CHECK(number<uint8_t>() == 2, "its pickle is of another protocol than torch.save()'s");
        return;
      case 'N':
        return stack_.push(IValue());
      case '\x88':
        return stack_.push(true);
      case '\x89':
        return stack_.push(false);
      case 'J':
        return stack_.push(int64_t{number<int32_t>()});
      case 'K':
        return stack_.push(int64_t{number<uint8_t>()});
      case 'M':
        return stack_.push(int64_t{number<uint16_t>()});
      case '\x8a':
        return stack_.push(long_integer());
      case 'G':
        return stack_.push(std::bit_cast<double>(__builtin_bswap64(number<uint64_t>())));
      case 'X':
        return stack_.push(std::string(bytes(number<uint32_t>())));
      case 'q':
        return stack_.put(number<uint8_t>());
      case 'r':
        return stack_.put(number<uint32_t>());
      case 'h':
        return stack_.get(number<uint8_t>());
      case 'j':
        return stack_.get(number<uint32_t>());
      default:
        return build(operation);
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

  void build(char operation) {
    switch (operation) {
      case '(':
        return stack_.push_mark();
      case ']':
        return stack_.push_container(Value::list);
      case '}':
        return stack_.push_container(Value::dict);
      case ')':
        return stack_.push_tuple({});
      case 't':
        return stack_.push_tuple(stack_.pop_to_mark());
      case '\x85':
      case '\x86':
      case '\x87':
        return stack_.push_tuple(stack_.pop_many(static_cast<unsigned char>(operation) - 0x84));
      case 'a':
        return stack_.extend(Value::list, stack_.pop_many(1));
      case 'e':
        return stack_.extend(Value::list, stack_.pop_to_mark());
      case 's':
        return stack_.extend(Value::dict, stack_.pop_many(2));
      case 'u':
        return stack_.extend(Value::dict, stack_.pop_to_mark());
      case 'b':  // attributes of an OrderedDict, such as the versions of a module's state
        stack_.pop();
        TORCH_CHECK(stack_.has_on_top(Value::dict), "its pickle is damaged");
        return;
      default:
        return call(operation);
    }
  }

  static std::vector<IValue> sizes_of(const IValue& tuple) {
    const std::vector<int64_t> sizes = SavedTensors::integers(tuple);
    return {sizes.begin(), sizes.end()};
  }

  void call(char operation) {
    if (operation == 'c') {
      const std::string module = line();
      stack_.push_inner(c10::make_intrusive<Name>(module + "." + line()));
    } else if (operation == 'Q') {
      push_storage(stack_.pop());
    } else if (operation == 'R') {
      const Value arguments = stack_.pop(), callable = stack_.pop();
      TORCH_CHECK(callable.what.isCapsule() && arguments.what.isTuple(), "its pickle is damaged");
      reduce(name_in(callable.what), arguments.what.toTupleRef().elements().vec());
    } else {
      TORCH_CHECK(false, "its pickle has an operation that torch.save() does not use: ",
                  static_cast<int>(static_cast<unsigned char>(operation)));
    }
  }

  // ("storage", type, name of the record, device, number of elements)
  void push_storage(const Value& id) {
    TORCH_CHECK(id.what.isTuple(), "its pickle is damaged");
    const std::vector<IValue> parts = id.what.toTupleRef().elements().vec();
    TORCH_CHECK(parts.size() == 5 && parts[1].isCapsule() && parts[2].isString() && parts[4].isInt(),
                "its pickle is damaged");
    stack_.push_inner(tensors_.storage(name_in(parts[1]), parts[2].toStringRef(), parts[4].toInt()));
  }

  void reduce(const std::string& callable, const std::vector<IValue>& arguments) {
    if (callable == "collections.OrderedDict" && arguments.empty()) return stack_.push_container(Value::dict);
    if (callable == "torch._utils._rebuild_tensor_v2") return stack_.push(tensors_.tensor(arguments));
    if (callable == "torch._utils._rebuild_parameter") return stack_.push(tensors_.parameter(arguments));
    if ((callable == "builtins.complex" || callable == "__builtin__.complex") && arguments.size() == 2 &&
        arguments[0].isDouble() && arguments[1].isDouble()) {
      return stack_.push(c10::complex<double>(arguments[0].toDouble(), arguments[1].toDouble()));
    }
    if (callable == "torch.Size" && arguments.size() == 1)
      return stack_.push(c10::ivalue::Tuple::create(sizes_of(arguments[0])));
    TORCH_CHECK(false, "it holds an object of ", callable,
                "; there may be tensors, numbers, strings and containers of them");
  }

  std::string_view left_;
  SavedTensors tensors_;
  PickleStack stack_;
};

}  // namespace

IValue unpickle(std::string_view pickled, const ReadStorage& read_storage) {
  TORCH_CHECK(pickled.size() <= kLargestPickle, "its pickle is larger than ", kLargestPickle, " bytes");
  return Unpickling(pickled, read_storage).run();
}

}  // namespace torchdion::optim
