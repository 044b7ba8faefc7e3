#include <ATen/core/ivalue.h>
#include <c10/core/Allocator.h>
#include <caffe2/serialize/inline_container.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torchdion/checkpoint.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "one_sentence.h"
#include "optim/unpickle.h"
#include "optim/writable.h"

// Its functions are no inline ones: hidden, they are not those of who links this library and has the same header.
#pragma GCC visibility push(hidden)
#include <caffe2/serialize/crc_alt.h>
#pragma GCC visibility pop

namespace torchdion {

using caffe2::serialize::PyTorchStreamReader;

namespace {

// What a rename has changed is on the disk when its folder is. A file system that cannot say so has nothing to add.
int sync_folder(const std::string& path) {
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return errno == EACCES ? 0 : errno;  // a folder that may be written, but not read
  const int error = ::fsync(opened) == 0 || errno == EINVAL ? 0 : errno;
  ::close(opened);
  return error;
}

// A file that is there whole or not at all: written under a temporary name, and renamed when its bytes are on the disk.
// Every failure is a c10::Error of the operating system's words; the temporary file is removed then.
class NewFile {
 public:
  explicit NewFile(std::string path)
      : path_(std::move(path)), temporary_(path_ + "." + std::to_string(::getpid()) + ".tmp") {
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file_ < 0) error_ = errno;
    check();
  }

  ~NewFile() {
    if (file_ >= 0) ::close(file_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Throws nothing: keep() says why bytes are missing.
  void write(const void* bytes, std::size_t size) noexcept {
    const auto* next = static_cast<const char*>(bytes);
    while (size > 0 && error_ == 0) {
      const ssize_t count = ::write(file_, next, size);
      if (count < 0 && errno != EINTR) error_ = errno;
      if (count <= 0) continue;
      next += count;
      size -= count;
    }
  }

  // Gives the file its name. After a crash of the machine it is the old one or the new one.
  void keep() {
    check();
    if (::fsync(file_) != 0) error_ = errno;
    if (::close(std::exchange(file_, -1)) != 0 && error_ == 0) error_ = errno;
    check();
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) error_ = errno;
    check();
    temporary_.clear();
    error_ = sync_folder(path_);
    check();
  }

 private:
  void check() const { TORCH_CHECK(error_ == 0, std::strerror(error_)); }

  std::string path_, temporary_;
  int file_ = -1;
  int error_ = 0;  // the first errno
};

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
  NewFile file(path);
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

template <class T>
T number(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// A file as torch's reader of archives asks for it. The reader inflates records as it opens the archive, whatever size
// they say, so that an archive with a compressed one is refused here. torch.save() compresses none.
class File final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit File(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    TORCH_CHECK(file_ >= 0, std::strerror(errno));
    struct stat status = {};
    const int failed = ::fstat(file_, &status);
    size_ = static_cast<std::size_t>(status.st_size);
    if (failed == 0 && S_ISREG(status.st_mode)) return;
    const int error = errno;
    ::close(file_);
    TORCH_CHECK(failed == 0, std::strerror(error));
    TORCH_CHECK(false, "it is no regular file");  // to read a pipe would wait
  }

  ~File() override { ::close(file_); }

  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::size_t size() const override { return size_; }

  // How many bytes it read. torch's reader refuses the archive where some are missing.
  std::size_t read(uint64_t begin, void* bytes, std::size_t size, const char* /*what*/ = "") const override {
    if (begin >= size_) return 0;
    size = std::min<uint64_t>(size, size_ - begin);
    std::size_t done = 0;
    while (done < size) {
      const ssize_t count = ::pread(file_, static_cast<char*>(bytes) + done, size - done, begin + done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) error_ = errno;
      if (count <= 0) break;
      done += count;
    }
    has_compressed_ = has_compressed_ || has_compressed({static_cast<const char*>(bytes), done});
    return has_compressed_ ? 0 : done;
  }

  // Why the reader refuses the archive, where it is not the archive's own fault or is known: else null.
  const char* refusal() const {
    if (error_ != 0) return std::strerror(error_);
    return has_compressed_ ? "it has compressed records, which torch.save() never writes" : nullptr;
  }

 private:
  // Whether these bytes are the archive's directory, which the reader reads at once, with an entry of another method
  // than 0.
  static bool has_compressed(std::string_view bytes) {
    constexpr std::size_t kEntry = 46;  // bytes before an entry's name
    while (bytes.size() >= kEntry && bytes.starts_with("PK\1\2")) {
      if (number<uint16_t>(&bytes[10]) != 0) return true;
      const std::size_t length = kEntry + number<uint16_t>(&bytes[28]) + number<uint16_t>(&bytes[30]) +
                                 number<uint16_t>(&bytes[32]);  // of the name, further fields and a remark
      bytes.remove_prefix(std::min(length, bytes.size()));
    }
    return false;
  }

  int file_;
  std::size_t size_ = 0;
  mutable int error_ = 0;  // the last errno
  mutable bool has_compressed_ = false;
};

// What torch's reader returns. Its own refusals have several lines.
template <class Read>
auto read_or_refuse(const File& file, const std::string& refusal, const Read& read) try {
  return read();
} catch (const std::exception&) {
  const char* known = file.refusal();
  TORCH_CHECK(false, known ? known : refusal);
}

// The archive of torch.save(), read without trust: torch's reader believes sizes, and compares neither checksums nor
// the name of a record with that in the directory.
class Archive {
 public:
  explicit Archive(const std::string& path)
      : file_(std::make_shared<File>(path)),
        left_(file_->size()),
        reader_(read_or_refuse(*file_, "it is cut short, damaged or no archive of torch.save()",
                               [&] { return PyTorchStreamReader(file_); })) {}

  bool has(const std::string& name) {
    return read_or_refuse(*file_, damaged(name), [&] { return reader_.hasRecord(name); });
  }

  // Each record is read once, so that all of them together are no larger than the file.
  c10::Storage read(const std::string& name) {
    TORCH_CHECK(has(name), "it has no record ", name);
    const std::size_t size = read_or_refuse(*file_, damaged(name), [&] { return reader_.getRecordSize(name); });
    TORCH_CHECK(size <= left_, "the record ", name, " is larger than the file");
    left_ -= size;
    at::DataPtr data = c10::GetAllocator(c10::kCPU)->allocate(size);
    read_or_refuse(*file_, damaged(name), [&] {
      reader_.getRecord(name, data.get(), size);
      check(name, crc32_fast(data.get(), size), size);
    });
    return {c10::Storage::use_byte_size_t(), size, std::move(data), nullptr, /*resizable=*/false};
  }

 private:
  static std::string damaged(const std::string& name) { return "the record " + name + " is damaged"; }

  std::string bytes(uint64_t begin, uint64_t size) {
    std::string read(size, '\0');
    TORCH_CHECK(file_->read(begin, read.data(), size) == size);
    return read;
  }

  // Compares the zip archive's header in front of a record with its name, and its checksum with that of the header or
  // of the descriptor behind it. A checksum of 0 is none: torch.save() leaves them out after
  // torch.serialization.set_crc32_options(False).
  void check(const std::string& name, uint32_t checksum, std::size_t size) {
    const uint64_t header_begin = reader_.getRecordHeaderOffset(name), begin = reader_.getRecordOffset(name);
    const std::string header = bytes(header_begin, begin - header_begin);
    const auto name_size = number<uint16_t>(&header[26]);
    TORCH_CHECK(header.substr(30, name_size).ends_with("/" + name));
    auto saved = number<uint32_t>(&header[14]);
    if (header[6] & 8) {  // there is a descriptor
      const std::string descriptor = bytes(begin + size, 8);
      TORCH_CHECK(descriptor.starts_with("PK\7\b"));
      saved = number<uint32_t>(&descriptor[4]);
    }
    TORCH_CHECK(saved == 0 || saved == checksum);
  }

  std::shared_ptr<File> file_;
  std::size_t left_;  // bytes that records may have
  PyTorchStreamReader reader_;
};

std::string_view text_of(const c10::Storage& record) {
  return {static_cast<const char*>(record.data()), record.nbytes()};
}

c10::IValue read_archive(const std::string& path) {
  Archive archive(path);
  TORCH_CHECK(!archive.has("byteorder") || text_of(archive.read("byteorder")) == "little",
              "its numbers are of another byte order than little-endian");
  const c10::Storage pickled = archive.read("data.pkl");
  return optim::unpickle(text_of(pickled), [&](const std::string& key) { return archive.read("data/" + key); });
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
