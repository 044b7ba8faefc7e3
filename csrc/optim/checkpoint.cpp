#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torchdion/checkpoint.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

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
    caffe2::serialize::PyTorchStreamReader reader(path);
    return torch::jit::readArchiveAndTensors("data", "", "data/", std::nullopt, std::nullopt, at::kCPU, reader);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    TORCH_CHECK(false, "torchdion::read_checkpoint: ", path, " is cut short or holds other objects than tensors, ",
                "numbers, strings and containers of them: ", what.substr(0, what.find('\n')));
  }
}

}  // namespace torchdion
