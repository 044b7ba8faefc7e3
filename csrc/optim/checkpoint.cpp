#include <ATen/core/ivalue.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torchdion/checkpoint.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "one_sentence.h"
#include "optim/archive.h"
#include "optim/nesting.h"
#include "optim/new_file.h"
#include "optim/unpickle.h"
#include "optim/writable.h"

namespace torchdion {

namespace {

// The zip archive of Python's torch.save(): data.pkl, and the bytes of each storage. torch::pickle_save() would tag
// lists and dicts with their types, by a function that torch.load(weights_only=True) refuses to call.
void write_archive(const c10::IValue& value, const std::string& path) {
  optim::check_nesting(value, "the value");
  const c10::IValue plain = optim::writable(value);
  std::string pickled;
  torch::jit::Pickler pickler([&](const char* bytes, std::size_t size) { pickled.append(bytes, size); }, nullptr,
                              nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(plain);
  pickler.stop();
  optim::NewFile file(path);
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, std::size_t size) {
    file.write(bytes, size);
    return size;  // keep() says what failed: the writer would throw it again from its destructor
  });
  writer.writeRecord("data.pkl", pickled.data(), pickled.size());
  writer.writeRecord("byteorder", "little", 6);
  const std::vector<at::Tensor>& tensors = pickler.tensorData();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const torch::jit::WriteableTensorData storage = torch::jit::getWriteableTensorData(tensors[i]);
    writer.writeRecord("data/" + std::to_string(i), storage.data(), storage.sizeInBytes());
  }
  writer.writeEndOfFile();
  file.keep();
}

c10::IValue read_archive(const std::string& path) {
  const optim::Archive archive(path);
  if (archive.has("byteorder")) {
    const optim::Archive::Bytes order = archive.read("byteorder");
    TORCH_CHECK(std::string_view(static_cast<const char*>(order.data.get()), order.size) == "little",
                "its numbers are of another byte order than little-endian");
  }
  const optim::Archive::Bytes pickled = archive.read("data.pkl");
  const auto read_storage = [&](const std::string& key) {
    optim::Archive::Bytes bytes = archive.read("data/" + key);
    return c10::Storage(c10::Storage::use_byte_size_t(), bytes.size, std::move(bytes.data), nullptr,
                        /*resizable=*/false);
  };
  return optim::unpickle({static_cast<const char*>(pickled.data.get()), pickled.size}, read_storage);
}

// One sentence, without the backtrace that what() of errors of TORCH_CHECK() appends.
[[noreturn]] void refuse(const char* function, const std::string& path, const char* how, const std::exception& error) {
  throw c10::Error(c10::str("torchdion::", function, ": ", path, " cannot be ", how, ": ", sentence_of(error)),
                   nullptr);
}

}  // namespace

void write_checkpoint(const c10::IValue& value, const std::string& path) {
  try {
    write_archive(value, path);
  } catch (const std::exception& error) {
    refuse("write_checkpoint", path, "written", error);
  }
}

c10::IValue read_checkpoint(const std::string& path) {
  try {
    return read_archive(path);
  } catch (const std::exception& error) {
    refuse("read_checkpoint", path, "read", error);
  }
}

}  // namespace torchdion
