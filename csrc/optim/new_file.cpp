#include "optim/new_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace torchdion::optim {

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

}  // namespace

NewFile::NewFile(std::string path)
    : path_(std::move(path)), temporary_(path_ + "." + std::to_string(::getpid()) + ".tmp") {
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) error_ = errno;
  check();
}

NewFile::~NewFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void NewFile::check() const { TORCH_CHECK(error_ == 0, std::strerror(error_)); }

void NewFile::write(const void* bytes, std::size_t size) noexcept {
  const auto* next = static_cast<const char*>(bytes);
  while (size > 0 && error_ == 0) {
    const ssize_t count = ::write(file_, next, size);
    if (count < 0 && errno != EINTR) error_ = errno;
    if (count <= 0) continue;
    next += count;
    size -= count;
  }
}

void NewFile::keep() {
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

}  // namespace torchdion::optim
