// The zip archive of Python's torch.save(), read without trust: nothing is compressed there, so that no record can be
// larger than the file, and the bytes of each are compared with their checksum.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <map>
#include <string>

namespace torchdion::optim {

class Archive {
 public:
  // Throws c10::Error for what is no such archive: cut short, compressed, with two records of one name or with records
  // that lie outside the file or on each other.
  explicit Archive(const std::string& path);
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  struct Bytes {
    at::DataPtr data;
    std::size_t size;
  };

  bool has(const std::string& name) const;
  // The record of this name below the archive's own folder. A checksum of 0 is none: torch.save() leaves them out after
  // torch.serialization.set_crc32_options(False).
  Bytes read(const std::string& name) const;

 private:
  struct Record {
    uint64_t header, size;
    uint32_t checksum;
  };
  struct Directory {
    uint64_t records, size, offset;
  };

  std::string bytes(uint64_t offset, uint64_t size) const;
  void read_into(void* target, uint64_t offset, uint64_t size) const;
  Directory find_directory() const;
  void add_records(const Directory& directory);
  uint64_t add_record(const char* entry, uint64_t available);

  int file_;
  uint64_t file_size_ = 0, end_of_records_ = 0;
  std::string folder_;  // "archive/", which all names begin with
  std::map<std::string, Record> records_;
};

}  // namespace torchdion::optim
