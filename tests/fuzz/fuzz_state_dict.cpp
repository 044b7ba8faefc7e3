// Whatever a checkpoint holds, it is either loaded, and a step can be taken, or refused with a c10::Error that leaves
// the optimizer as it was. Any other exception, crash or endless loop ends the program.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <torchdion/checkpoint.h>
#include <torchdion/optim.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace {

using c10::IValue;
using c10::impl::GenericDict;
using c10::impl::GenericList;
using torch::optim::OptimizerParamGroup;

struct Subject {
  std::vector<at::Tensor> matrices{at::ones({4, 3}), at::ones({3, 3}), at::ones({2})}, stack{at::ones({2, 3, 4})},
      vectors{at::ones({5})};
  torchdion::Dion optimizer{groups()};

  std::vector<OptimizerParamGroup> groups() const {
    std::vector<OptimizerParamGroup> all;
    all.emplace_back(matrices);
    all.emplace_back(stack, std::make_unique<torchdion::DionOptions>(torchdion::DionOptions(0.1).batch_dims(1)));
    all.emplace_back(vectors, std::make_unique<torchdion::DionOptions>(
                                  torchdion::DionOptions(0.1).algorithm(torchdion::Algorithm::adamw)));
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
      return at::zeros({1}, dtype).expand(sizes);
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

// The same value with some of its parts replaced or left out.
IValue changed(const IValue& value, FuzzedDataProvider& data) {
  if (data.ConsumeIntegralInRange(0, 15) == 0) return value_of(data);
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

// The bytes of a good checkpoint with some of them replaced, inserted or cut off, read again.
IValue read_damaged(const IValue& value, FuzzedDataProvider& data) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("torchdion.fuzz." + std::to_string(getpid()))).string();
  torchdion::write_checkpoint(value, path);
  std::string bytes;
  {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  for (int i = data.ConsumeIntegralInRange(0, 4); i > 0 && !bytes.empty(); --i) {
    bytes[data.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] = data.ConsumeIntegral<char>();
  }
  if (data.ConsumeIntegralInRange(0, 7) == 0) bytes.resize(data.ConsumeIntegralInRange<std::size_t>(0, bytes.size()));
  std::ofstream(path, std::ios::binary) << bytes;
  return torchdion::read_checkpoint(path);
}

void check_that_nothing_changed(const Subject& subject, const at::Tensor& momentum, const at::Tensor& before) {
  const at::Tensor& now = subject.optimizer.state_of(subject.matrices[0]).momentum();
  if (!now.is_same(momentum) || !now.equal(before)) __builtin_trap();
  if (subject.optimizer.param_groups()[1].options().get_lr() != 0.1) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  at::set_num_threads(1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  FuzzedDataProvider data(bytes, size);
  Subject subject;
  subject.step();
  const at::Tensor momentum = subject.optimizer.state_of(subject.matrices[0]).momentum(), before = momentum.clone();
  bool loaded = false;
  try {
    const IValue good = subject.optimizer.state_dict();
    const IValue saved = data.ConsumeBool() ? changed(good, data) : read_damaged(good, data);
    subject.optimizer.load_state_dict(saved);
    loaded = true;
    subject.step();
  } catch (const c10::Error&) {
    if (!loaded) check_that_nothing_changed(subject, momentum, before);
  }
  return 0;
}
