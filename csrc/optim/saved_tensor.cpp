#include "optim/saved_tensor.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace torchdion::optim {

namespace {

struct TypedStorage : torch::CustomClassHolder {
  TypedStorage(c10::Storage storage, at::ScalarType dtype, int64_t numel)
      : storage(std::move(storage)), dtype(dtype), numel(numel) {}
  c10::Storage storage;
  at::ScalarType dtype;
  int64_t numel;
};

at::ScalarType dtype_of(const std::string& type) {
  static const std::map<std::string, at::ScalarType> dtypes{
      {"torch.DoubleStorage", at::kDouble},
      {"torch.FloatStorage", at::kFloat},
      {"torch.HalfStorage", at::kHalf},
      {"torch.BFloat16Storage", at::kBFloat16},
      {"torch.LongStorage", at::kLong},
      {"torch.IntStorage", at::kInt},
      {"torch.ShortStorage", at::kShort},
      {"torch.CharStorage", at::kChar},
      {"torch.ByteStorage", at::kByte},
      {"torch.BoolStorage", at::kBool},
      {"torch.ComplexDoubleStorage", at::kComplexDouble},
      {"torch.ComplexFloatStorage", at::kComplexFloat},
  };
  const auto found = dtypes.find(type);
  TORCH_CHECK(found != dtypes.end(), "a tensor is of ", type, ", which is no storage of numbers");
  return found->second;
}

// Whether all elements lie before the end of a storage of `numel` elements, and can be counted.
bool fits(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, int64_t numel) {
  int64_t last = offset, count = 1;
  bool is_empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    int64_t reach = 0;
    is_empty = is_empty || sizes[i] == 0;
    if (__builtin_mul_overflow(std::max<int64_t>(sizes[i] - 1, 0), strides[i], &reach)) return false;
    if (__builtin_add_overflow(last, reach, &last)) return false;
    if (__builtin_mul_overflow(count, std::max<int64_t>(sizes[i], 1), &count)) return false;
  }
  return is_empty ? offset <= numel : last < numel;
}

void require_grad(const at::Tensor& tensor, const c10::IValue& flag) {
  TORCH_CHECK(flag.isBool(), "its pickle is damaged");
  const bool can = at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
  if (flag.toBool() && can) tensor.set_requires_grad(true);
}

// A tensor may be the negative or the conjugate of what its storage holds.
void set_bits(const at::Tensor& tensor, const c10::IValue& metadata) {
  if (metadata.isNone()) return;
  TORCH_CHECK(metadata.isGenericDict(), "its pickle is damaged");
  for (const auto& item : metadata.toGenericDict()) {
    TORCH_CHECK(item.key().isString() && item.value().isBool(), "its pickle is damaged");
    const bool neg = item.key().toStringRef() == "neg", conj = item.key().toStringRef() == "conj";
    TORCH_CHECK(neg || conj, "a tensor has a mark that is not known");
    TORCH_CHECK(tensor.is_complex() || (neg && tensor.is_floating_point()), "its pickle is damaged");
    if (neg) tensor._set_neg(item.value().toBool());
    if (conj) tensor._set_conj(item.value().toBool());
  }
}

}  // namespace

std::vector<int64_t> SavedTensors::integers(const c10::IValue& tuple) {
  TORCH_CHECK(tuple.isTuple() && tuple.toTupleRef().elements().size() <= 64, "the shape of a tensor is damaged");
  std::vector<int64_t> values;
  for (const c10::IValue& value : tuple.toTupleRef().elements()) {
    TORCH_CHECK(value.isInt() && value.toInt() >= 0, "the shape of a tensor is damaged");
    values.push_back(value.toInt());
  }
  return values;
}

c10::intrusive_ptr<torch::CustomClassHolder> SavedTensors::storage(const std::string& type, const std::string& key,
                                                                   int64_t numel) {
  const at::ScalarType dtype = dtype_of(type);
  auto found = read_before_.find(key);
  if (found == read_before_.end()) found = read_before_.emplace(key, read_(key)).first;
  const auto available = static_cast<int64_t>(found->second.nbytes() / c10::elementSize(dtype));
  TORCH_CHECK(numel >= 0 && numel <= available, "the record data/", key, " holds ", available, " elements of ", type,
              ", its pickle says ", numel);
  return c10::make_intrusive<TypedStorage>(found->second, dtype, numel);
}

at::Tensor SavedTensors::tensor(const std::vector<c10::IValue>& arguments) const {
  TORCH_CHECK(arguments.size() >= 6 && arguments.size() <= 7 && arguments[0].isCapsule() && arguments[1].isInt(),
              "its pickle is damaged");
  const auto holder = arguments[0].toCapsule();
  const auto* source = dynamic_cast<const TypedStorage*>(holder.get());
  const int64_t offset = arguments[1].toInt();
  const std::vector<int64_t> sizes = integers(arguments[2]), strides = integers(arguments[3]);
  TORCH_CHECK(source && offset >= 0 && sizes.size() == strides.size(), "its pickle is damaged");
  TORCH_CHECK(fits(sizes, strides, offset, source->numel), "a tensor of shape ", at::IntArrayRef(sizes),
              " reaches beyond its record");
  const at::Tensor tensor = at::empty({0}, source->dtype);
  at::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source->storage);
  impl->set_sizes_and_strides(sizes, strides, offset);
  if (arguments.size() > 6) set_bits(tensor, arguments[6]);
  require_grad(tensor, arguments[4]);
  return tensor;
}

at::Tensor SavedTensors::parameter(const std::vector<c10::IValue>& arguments) const {
  TORCH_CHECK(arguments.size() == 3 && arguments[0].isTensor(), "its pickle is damaged");
  const at::Tensor tensor = arguments[0].toTensor().detach();
  require_grad(tensor, arguments[1]);
  return tensor;
}

}  // namespace torchdion::optim
