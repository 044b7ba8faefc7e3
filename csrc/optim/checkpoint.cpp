#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/csrc/jit/serialization/unpickler.h>
#include <torchdion/checkpoint.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

namespace torchdion {

namespace {

// The zip archive of Python's torch.save(): data.pkl, and the bytes of each storage. torch::pickle_save() would tag
// lists and dicts with their types, by a function that torch.load(weights_only=True) refuses to call.
void write_archive(const c10::IValue& value, const std::string& path) {
  std::string pickled;
  torch::jit::Pickler pickler([&](const char* bytes, std::size_t size) { pickled.append(bytes, size); }, nullptr,
                              nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  std::ofstream file(path, std::ios::binary);
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, std::size_t size) {
    file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
    return size;  // a failure is thrown below: the writer would throw it again from its destructor
  });
  writer.writeRecord("data.pkl", pickled.data(), pickled.size());
  writer.writeRecord("byteorder", "little", 6);
  const std::vector<at::Tensor>& tensors = pickler.tensorData();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const torch::jit::WriteableTensorData storage = torch::jit::getWriteableTensorData(tensors[i]);
    writer.writeRecord("data/" + std::to_string(i), storage.data(), storage.sizeInBytes());
  }
  writer.writeEndOfFile();
  file.close();
  TORCH_CHECK(file, "the file system refuses it");
}

// Reads records of an archive, none of which can be larger than its file: torch.save() compresses nothing, and sizes
// are among what a damaged file has wrong.
class Records {
 public:
  explicit Records(const std::string& path) : reader_(path), file_size_(std::filesystem::file_size(path)) {}

  std::pair<at::DataPtr, std::size_t> read(const std::string& name) {
    TORCH_CHECK(reader_.getRecordSize(name) <= file_size_, "the record ", name, " is larger than the file");
    auto record = reader_.getRecord(name);
    sizes_[std::get<0>(record).get()] = std::get<1>(record);
    return {std::move(std::get<0>(record)), std::get<1>(record)};
  }

  // The unpickler believes what the pickle says of sizes, strides and storages.
  void check_bounds(const at::Tensor& tensor) const {
    if (!tensor.defined()) return;
    TORCH_CHECK(tensor.layout() == at::kStrided && tensor.has_storage(), "a tensor is not dense");
    const auto record = sizes_.find(tensor.storage().data());
    int64_t last = tensor.storage_offset();
    bool empty = false, sane = last >= 0;
    for (int64_t i = 0; i < tensor.dim() && sane; ++i) {
      const int64_t size = tensor.size(i), stride = tensor.stride(i);
      int64_t reach = 0;
      empty = empty || size == 0;
      sane = size >= 0 && stride >= 0 && !__builtin_mul_overflow(std::max<int64_t>(size - 1, 0), stride, &reach) &&
             !__builtin_add_overflow(last, reach, &last);
    }
    const std::size_t available = record == sizes_.end() ? 0 : record->second / tensor.element_size();
    TORCH_CHECK(sane && (empty || static_cast<std::size_t>(last) < available), "a tensor of shape ", tensor.sizes(),
                " reaches beyond its record");
  }

 private:
  caffe2::serialize::PyTorchStreamReader reader_;
  std::size_t file_size_;
  std::map<const void*, std::size_t> sizes_;
};

c10::IValue read_archive(const std::string& path) {
  Records records(path);
  const auto [pickled, size] = records.read("data.pkl");
  const char* next = static_cast<const char*>(pickled.get());
  const char* const end = next + size;
  const auto read_bytes = [&](char* buffer, std::size_t count) {
    const std::size_t available = std::min(count, static_cast<std::size_t>(end - next));
    std::copy_n(next, available, buffer);
    next += available;
    return available;
  };
  const auto read_storage = [&](const std::string& name) { return records.read("data/" + name).first; };
  torch::jit::Unpickler unpickler(read_bytes, nullptr, nullptr, read_storage, at::kCPU);
  const c10::IValue value = unpickler.parse_ivalue();
  value.visit([&](const c10::IValue& part) {
    if (part.isTensor()) records.check_bounds(part.toTensor());
    return false;
  });
  return value;
}

}  // namespace

void write_checkpoint(const c10::IValue& value, const std::string& path) {
  const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
  try {
    write_archive(value, temporary);
    std::filesystem::rename(temporary, path);
  } catch (const std::exception& error) {
    std::remove(temporary.c_str());
    TORCH_CHECK(false, "torchdion::write_checkpoint: ", path, " cannot be written: ", error.what());
  }
}

c10::IValue read_checkpoint(const std::string& path) {
  TORCH_CHECK(std::filesystem::is_regular_file(path), "torchdion::read_checkpoint: there is no file ", path);
  try {
    return read_archive(path);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    TORCH_CHECK(false, "torchdion::read_checkpoint: ", path, " is cut short or holds other objects than tensors, ",
                "numbers, strings and containers of them: ", what.substr(0, what.find('\n')));
  }
}

}  // namespace torchdion
