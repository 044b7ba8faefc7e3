#include "linalg/cuda/tensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <list>
#include <mutex>

#include "linalg/cuda/operations.h"
#include "linalg/cuda/runtime.h"

namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE {

namespace {

void append_pointers(std::vector<uint64_t>& words, const Matrices& matrices) {
  for (char* data : matrices.data) words.push_back(reinterpret_cast<uint64_t>(data));
}

// cuBLAS has other kernels for matrices that do not begin at a multiple of so many bytes.
constexpr int64_t kAlignment = 16;

// With contiguous rows; one copy of what is one matrix, however often it is in the list.
Matrices copied(const Matrices& matrices, at::ScalarType dtype, at::Tensor& memory, bool with_entries = true) {
  const bool is_one = matrices.count() > 1 && matrices.spacing == 0;
  const Matrices distinct = is_one ? matrices.slice(0, 1) : matrices;
  memory =
      at::empty({distinct.count(), matrices.rows, matrices.cols}, at::TensorOptions(dtype).device(matrices.device));
  const Matrices copies(memory);
  if (with_entries && copies.numel() > 0) Operations::copy_(copies, distinct, 1);
  return Matrices(memory.expand({matrices.count(), matrices.rows, matrices.cols}));
}

// A list of pointers that lies in device memory from one step to the next: a training whose tensors stay where they are
// uploads it once.
struct KeptTable {
  c10::Device device;
  Stream stream;
  std::vector<uint64_t> words;
  at::Tensor table;
};

// Of so many tables the one that has not been asked for for the longest time goes.
constexpr std::size_t kMostTables = 256;

}  // namespace

Storage storage_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return Storage::float64;
    case at::kHalf:
      return Storage::float16;
    case at::kBFloat16:
      return Storage::bfloat16;
    default:
      TORCH_INTERNAL_ASSERT(dtype == at::kFloat);
      return Storage::float32;
  }
}

Entries entries(const at::Tensor& tensor) {  // data_ptr(), as gradients are only read
  return {tensor.data_ptr(), storage_of(tensor.scalar_type())};
}

DeviceRates device_rates(const FactorRule& rule) {
  const auto number = [](double value, const at::Tensor& multiplier) -> DeviceNumber {
    return {value, multiplier.defined() ? entries(multiplier) : Entries{nullptr, Storage::float64}};
  };
  return {number(rule.rates.lr, rule.multipliers.lr), number(rule.rates.weight_decay, rule.multipliers.weight_decay)};
}

Stream stream_of(c10::Device device) { return current_stream(device.index()); }

at::Tensor table_of(const void* data, std::size_t bytes, c10::Device device) {
  const int64_t words = static_cast<int64_t>(bytes / sizeof(uint64_t));
  at::Tensor table = at::empty({words}, at::TensorOptions(at::kLong).device(device));
  kernels::upload(reinterpret_cast<uint64_t*>(table.mutable_data_ptr<int64_t>()), static_cast<const uint64_t*>(data),
                  words, stream_of(device));
  return table;
}

at::Tensor kept_table_of(const std::vector<uint64_t>& words, c10::Device device) {
  const auto upload_all = [&] { return table_of(words.data(), words.size() * sizeof(uint64_t), device); };
  // What a graph reads must live as long as the graph: its own memory does.
  if (Operations::is_capturing(device)) return upload_all();
  // Never destroyed: at the end of a program its device may be gone before.
  static auto& tables = *new std::list<KeptTable>;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const Stream stream = stream_of(device);
  const auto known = std::find_if(tables.begin(), tables.end(), [&](const KeptTable& kept) {
    return kept.device == device && kept.stream == stream && kept.words == words;
  });
  if (known != tables.end()) {
    tables.splice(tables.begin(), tables, known);
  } else {
    tables.push_front({device, stream, words, upload_all()});
    if (tables.size() > kMostTables) tables.pop_back();
  }
  return tables.front().table;
}

Listed::Listed(const Matrices& matrices) : pointers_(matrices.pointers) {
  if (!pointers_.defined()) {
    std::vector<uint64_t> words;
    append_pointers(words, matrices);
    pointers_ = kept_table_of(words, matrices.device);
  }
  const Strides strides{matrices.row_stride, matrices.col_stride};
  list_ = {static_cast<void* const*>(pointers_.data_ptr()),
           storage_of(matrices.dtype),
           strides,
           matrices.count(),
           matrices.rows,
           matrices.cols};
}

void Operations::upload(const std::vector<Matrices*>& lists) {
  std::vector<uint64_t> words;
  for (const Matrices* list : lists) append_pointers(words, *list);
  if (words.empty()) return;
  const at::Tensor table = kept_table_of(words, lists.front()->device);
  int64_t begin = 0;
  for (Matrices* list : lists) {
    list->pointers = table.narrow(0, begin, list->count());
    begin += list->count();
  }
}

Matrices stored_as(at::ScalarType dtype, const Matrices& matrices, at::Tensor& memory, bool with_entries) {
  if (matrices.dtype == dtype) return matrices;
  if (!matrices.row_major()) return stored_as(dtype, matrices.t(), memory, with_entries).t();
  return copied(matrices, dtype, memory, with_entries);
}

Matrices aligned(const Matrices& matrices, bool as_stack, at::Tensor& memory, bool with_entries) {
  const std::vector<char*>& data = matrices.data;
  const auto is_aligned = [](const char* each) { return reinterpret_cast<std::uintptr_t>(each) % kAlignment == 0; };
  if (std::all_of(data.begin(), as_stack ? data.begin() + 1 : data.end(), is_aligned)) return matrices;
  if (!matrices.row_major()) return aligned(matrices.t(), as_stack, memory, with_entries).t();
  const int64_t count = matrices.count(), rows = matrices.rows, cols = matrices.cols, leading = matrices.row_stride;
  const int64_t extent = (rows - 1) * leading + cols;
  const int64_t spacing = as_stack ? *matrices.spacing : divide_up(extent, kAlignment) * kAlignment;
  memory = at::empty({(count - 1) * spacing + extent}, at::TensorOptions(matrices.dtype).device(matrices.device));
  const Matrices copies(memory.as_strided({count, rows, cols}, {spacing, leading, 1}));
  const int64_t distinct = spacing == 0 ? 1 : count;
  if (with_entries && copies.numel() > 0) Operations::copy_(copies.slice(0, distinct), matrices.slice(0, distinct), 1);
  return copies;
}

Matrices with_contiguous_rows(const Matrices& matrices, at::Tensor& memory) {
  return matrices.row_major() ? matrices : copied(matrices, matrices.dtype, memory);
}

}  // namespace torchdion::linalg::TORCHDION_CUDA_NAMESPACE
