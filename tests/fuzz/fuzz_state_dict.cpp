// Whatever a checkpoint holds, it is either loaded, and a step can be taken, or refused with a c10::Error of one line
// that leaves the optimizer as it was. Any other exception, crash or endless loop ends the program.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <caffe2/serialize/inline_container.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <torchdion/checkpoint.h>
#include <torchdion/optim.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "optim/zip_of.h"

namespace {

using c10::IValue;
using c10::impl::GenericDict;
using c10::impl::GenericList;
using caffe2::serialize::PyTorchStreamReader;
using torch::optim::OptimizerParamGroup;

struct Subject {
  std::vector<at::Tensor> matrices{at::ones({4, 3}), at::ones({3, 3}), at::ones({2})}, stack{at::ones({2, 3, 4})},
      vectors{at::ones({5})};
  torchdion::Dion optimizer{groups()};

  std::vector<OptimizerParamGroup> groups() const {
    std::vector<OptimizerParamGroup> all;
    all.emplace_back(matrices);
    all.emplace_back(stack, std::make_unique<torchdion::DionOptions>(torchdion::DionOptions(0.1).batch_dims(1)));
    all.emplace_back(vectors, std::make_unique<torchdion::DionOptions>(torchdion::DionOptions(0.1).algorithm("adamw")));
    return all;
  }

  void step() {
    for (OptimizerParamGroup& group : optimizer.param_groups()) {
      for (at::Tensor& param : group.params()) param.mutable_grad() = at::ones_like(param);
    }
    optimizer.step();
  }
};

at::Tensor tensor_of(FuzzedDataProvider& data) {
  std::vector<int64_t> sizes(data.ConsumeIntegralInRange(0, 4));
  for (int64_t& size : sizes) size = data.ConsumeIntegralInRange(0, 5);
  const at::ScalarType dtype = data.PickValueInArray(
      {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kBool, at::kComplexFloat});
  switch (data.ConsumeIntegralInRange(0, 6)) {
    case 0:
      return at::Tensor();
    case 1:
      return at::zeros(sizes, dtype).to_sparse();
    case 2:
      return at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
    case 3:
      return at::zeros({}, dtype).expand(sizes);
    default:
      return at::full(sizes, data.ConsumeFloatingPoint<double>(), at::kDouble).to(dtype);
  }
}

IValue value_of(FuzzedDataProvider& data, int depth = 0) {
  switch (data.ConsumeIntegralInRange(0, depth < 3 ? 9 : 6)) {
    case 0:
      return data.ConsumeBool();
    case 1:
      return data.ConsumeIntegral<int64_t>();
    case 2:
      return data.ConsumeFloatingPoint<double>();
    case 3:
      return data.ConsumeRandomLengthString(12);
    case 4:
      return std::string(data.PickValueInArray({"dion", "lion", "adamw", "left", "right", "qr", "rcqr", "bfloat16"}));
    case 5:
      return tensor_of(data);
    case 6:
      return IValue();
    case 7:
      return c10::ivalue::Tuple::create(value_of(data, depth + 1), value_of(data, depth + 1));
    case 8: {
      GenericList list(c10::AnyType::get());
      for (int i = data.ConsumeIntegralInRange(0, 3); i > 0; --i) list.push_back(value_of(data, depth + 1));
      return list;
    }
    default: {
      GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
      for (int i = data.ConsumeIntegralInRange(0, 3); i > 0; --i) {
        const IValue key = data.ConsumeBool() ? IValue(data.ConsumeIntegralInRange<int64_t>(-1, 5))
                                              : IValue(data.ConsumeRandomLengthString(8));
        dict.insert(key, value_of(data, depth + 1));
      }
      return dict;
    }
  }
}

// The same value with some of its parts replaced or left out; all else stays once the data are used up, which gives 0.
IValue changed(const IValue& value, FuzzedDataProvider& data) {
  if (data.ConsumeIntegralInRange(0, 63) == 1) return value_of(data);
  if (value.isGenericDict()) {
    GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
    for (const auto& item : value.toGenericDict()) {
      if (data.ConsumeIntegralInRange(0, 31) != 1) dict.insert(item.key(), changed(item.value(), data));
    }
    return dict;
  }
  if (value.isList()) {
    GenericList list(c10::AnyType::get());
    for (const IValue& item : value.toListRef()) {
      if (data.ConsumeIntegralInRange(0, 31) != 1) list.push_back(changed(item, data));
    }
    return list;
  }
  return value;
}

std::string path_of_checkpoint() {
  return (std::filesystem::temp_directory_path() / ("torchdion.fuzz." + std::to_string(getpid()))).string();
}

// The bytes of a good checkpoint.
std::string good_file() {
  const std::string path = path_of_checkpoint();
  Subject subject;
  subject.step();
  torchdion::write_checkpoint(subject.optimizer.state_dict(), path);
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

IValue read_bytes(const std::string& bytes) {
  const std::string path = path_of_checkpoint();
  std::ofstream(path, std::ios::binary) << bytes;
  return torchdion::read_checkpoint(path);
}

// A good checkpoint with some of its bytes replaced or cut off.
IValue read_damaged(FuzzedDataProvider& data) {
  static const std::string good = good_file();
  std::string bytes = good;
  for (int i = data.ConsumeIntegralInRange(0, 4); i > 0 && !bytes.empty(); --i) {
    bytes[data.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] = data.ConsumeIntegral<char>();
  }
  if (data.ConsumeIntegralInRange(0, 7) == 0) bytes.resize(data.ConsumeIntegralInRange<std::size_t>(0, bytes.size()));
  return read_bytes(bytes);
}

std::string record_of(PyTorchStreamReader& archive, const std::string& name) {
  const auto [data, size] = archive.getRecord(name);
  return {static_cast<const char*>(data.get()), size};
}

// A pickle as a list of operations with their arguments.
std::vector<std::string> operations_of(const std::string& pickled) {
  std::vector<std::string> all;
  for (std::size_t begin = 0; begin < pickled.size();) {
    std::size_t size = 1;
    switch (pickled[begin]) {
      case '\x80':
      case 'K':
      case 'q':
      case 'h':
        size = 2;
        break;
      case 'M':
        size = 3;
        break;
      case 'J':
      case 'r':
      case 'j':
        size = 5;
        break;
      case 'G':
        size = 9;
        break;
      case '\x8a':
        size = 2 + static_cast<unsigned char>(pickled[begin + 1]);
        break;
      case 'X': {
        uint32_t length = 0;
        std::memcpy(&length, &pickled[begin + 1], sizeof(length));
        size = 5 + length;
        break;
      }
      case 'c':
        size = pickled.find('\n', pickled.find('\n', begin) + 1) + 1 - begin;
        break;
      default:
        break;
    }
    all.push_back(pickled.substr(begin, size));
    begin += size;
  }
  return all;
}

std::string operation_of(FuzzedDataProvider& data) {
  const char operation = data.PickValueInArray({'(', ']', '}', ')', 't', '\x85', '\x86', '\x87', 'a', 'e', 's',
                                                'u', 'b', 'R', 'Q', 'N', '\x88', '\x89', '0',    '2', 'K', 'q',
                                                'h', 'J', 'r', 'j', 'G', '\x8a', 'X',    'c',    '.'});
  switch (operation) {
    case 'K':
    case 'q':
    case 'h':
      return {operation, data.ConsumeIntegral<char>()};
    case 'J':
    case 'r':
    case 'j':
      return operation + torchdion::little_endian(data.ConsumeIntegral<uint32_t>());
    case 'G':
      return operation + torchdion::little_endian(data.ConsumeIntegral<uint64_t>());
    case '\x8a':
      return "\x8a\x08" + torchdion::little_endian(data.ConsumeIntegral<uint64_t>());
    case 'X':
      return operation +
             torchdion::little_endian(data.ConsumeIntegral<uint32_t>() >> data.ConsumeIntegral<uint8_t>() % 32) +
             data.ConsumeRandomLengthString(8);
    case 'c':
      return data.PickValueInArray({"ctorch._utils\n_rebuild_tensor_v2\n", "ctorch._utils\n_rebuild_parameter\n",
                                    "ccollections\nOrderedDict\n", "ctorch\nFloatStorage\n", "ctorch\nSize\n",
                                    "c__builtin__\ncomplex\n", "cos\nsystem\n"});
    default:
      return {operation};
  }
}

// A good checkpoint: the operations of its pickle, and its other records.
struct Pickled {
  std::vector<std::string> operations;
  torchdion::Records tensors;
};

Pickled good_pickle() {
  const std::string path = path_of_checkpoint();
  std::ofstream(path, std::ios::binary) << good_file();
  PyTorchStreamReader archive(path);
  Pickled good{operations_of(record_of(archive, "data.pkl")), {}};
  for (int i = 0; archive.hasRecord("data/" + std::to_string(i)); ++i) {
    good.tensors.emplace_back("a/data/" + std::to_string(i), record_of(archive, "data/" + std::to_string(i)));
  }
  return good;
}

// One operation left out, repeated, exchanged, replaced, added or of another argument.
void change(std::vector<std::string>& operations, FuzzedDataProvider& data) {
  const auto place = operations.begin() + data.ConsumeIntegralInRange<std::size_t>(0, operations.size() - 1);
  const auto other = operations.begin() + data.ConsumeIntegralInRange<std::size_t>(0, operations.size() - 1);
  switch (data.ConsumeIntegralInRange(0, 5)) {
    case 0:
      operations.erase(place);
      break;
    case 1:
      operations.insert(place, std::string(*other));
      break;
    case 2:
      std::iter_swap(place, other);
      break;
    case 3:
      *place = operation_of(data);
      break;
    case 4:
      operations.insert(place, operation_of(data));
      break;
    default:
      if (place->size() > 1) {
        (*place)[data.ConsumeIntegralInRange<std::size_t>(1, place->size() - 1)] = data.ConsumeIntegral<char>();
      }
  }
}

// A good checkpoint whose pickle has been changed, with the checksum that fits.
IValue read_repickled(FuzzedDataProvider& data) {
  static const Pickled good = good_pickle();
  std::vector<std::string> operations = good.operations;
  for (int i = data.ConsumeIntegralInRange(1, 6); i > 0 && !operations.empty(); --i) change(operations, data);
  std::string pickled;
  for (const std::string& operation : operations) pickled += operation;
  torchdion::Records records{{"a/data.pkl", pickled}};
  records.insert(records.end(), good.tensors.begin(), good.tensors.end());
  return read_bytes(torchdion::zip_of(records));
}

enum Damage { kValues, kBytes, kPickle };

// Of all cases; printed when the program ends.
struct Counts {
  long cases[3] = {}, loaded[3] = {};

  ~Counts() {
    std::filesystem::remove(path_of_checkpoint());
    const char* const names[] = {"values", "bytes", "pickles"};
    for (int damage = 0; damage < 3; ++damage) {
      std::fprintf(stderr, "damaged %s: %ld cases, %ld loaded\n", names[damage], cases[damage], loaded[damage]);
    }
  }
} counts;

void check_that_nothing_changed(const Subject& subject, const at::Tensor& momentum, const at::Tensor& before) {
  const at::Tensor& now = subject.optimizer.state_of(subject.matrices[0]).momentum();
  if (!now.is_same(momentum) || !now.equal(before)) __builtin_trap();
  if (subject.optimizer.param_groups()[1].options().get_lr() != 0.1) __builtin_trap();
}

}  // namespace

// As tests/cpp/leaks_of_torch.txt.
extern "C" const char* __lsan_default_suppressions() { return "leak:mz_zip_reader_init\n"; }

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  at::set_num_threads(1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  FuzzedDataProvider data(bytes, size);
  Subject subject;
  subject.step();
  const at::Tensor momentum = subject.optimizer.state_of(subject.matrices[0]).momentum(), before = momentum.clone();
  const int damage = data.ConsumeIntegralInRange<int>(kValues, kPickle);
  ++counts.cases[damage];
  bool loaded = false;
  try {
    const IValue saved = damage == kValues  ? changed(subject.optimizer.state_dict(), data)
                         : damage == kBytes ? read_damaged(data)
                                            : read_repickled(data);
    subject.optimizer.load_state_dict(saved);
    loaded = true;
    ++counts.loaded[damage];
    subject.step();
  } catch (const c10::Error& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) __builtin_trap();
    if (!loaded) check_that_nothing_changed(subject, momentum, before);
  }
  return 0;
}
