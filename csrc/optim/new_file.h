// A file that is there whole or not at all: written under a temporary name, and renamed when its bytes are on the disk.
#pragma once

#include <cstddef>
#include <string>

namespace torchdion::optim {

// Every failure is a c10::Error of the operating system's words; the temporary file is removed then.
class NewFile {
 public:
  explicit NewFile(std::string path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Throws nothing: keep() says why bytes are missing.
  void write(const void* bytes, std::size_t size) noexcept;
  // Gives the file its name. After a crash of the machine it is the old one or the new one.
  void keep();

 private:
  void check() const;

  std::string path_, temporary_;
  int file_ = -1;
  int error_ = 0;  // the first errno
};

}  // namespace torchdion::optim
