#include "optim/archive.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

namespace torchdion::optim {

namespace {

static_assert(std::endian::native == std::endian::little);  // as the archive's numbers

template <class T>
T number(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Sizes of the archive's structures, by their names in PKWARE's APPNOTE.
constexpr uint64_t kLocalHeader = 30, kCentralHeader = 46, kEnd = 22, kLocator64 = 20, kEnd64 = 56, kComment = 0xffff;
constexpr uint32_t kLarge = 0xffffffff;  // the number is among those of 64 bits

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables checksum_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0xedb88320u : 0);
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
    }
  }
  return tables;
}

// CRC-32, eight bytes at a time.
uint32_t checksum_of(const char* bytes, uint64_t size) {
  static constexpr Tables tables = checksum_tables();
  uint32_t value = ~0u;
  for (; size >= 8; bytes += 8, size -= 8) {
    const uint64_t eight = number<uint64_t>(bytes) ^ value;
    value = 0;
    for (int k = 0; k < 8; ++k) value ^= tables[7 - k][(eight >> (8 * k)) & 0xff];
  }
  for (; size > 0; ++bytes, --size) value = (value >> 8) ^ tables[0][(value ^ number<uint8_t>(bytes)) & 0xff];
  return ~value;
}

}  // namespace

Archive::Archive(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  TORCH_CHECK(file_ >= 0, std::strerror(errno));
  try {
    struct stat status;
    TORCH_CHECK(::fstat(file_, &status) == 0, std::strerror(errno));
    TORCH_CHECK(S_ISREG(status.st_mode), "it is no regular file");
    file_size_ = static_cast<uint64_t>(status.st_size);
    add_records(find_directory());
  } catch (...) {
    ::close(file_);
    throw;
  }
}

Archive::~Archive() { ::close(file_); }

void Archive::read_into(void* target, uint64_t offset, uint64_t size) const {
  TORCH_CHECK(offset <= file_size_ && size <= file_size_ - offset, "it is cut short");
  auto* next = static_cast<char*>(target);
  while (size > 0) {
    const ssize_t count = ::pread(file_, next, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    TORCH_CHECK(count >= 0, std::strerror(errno));
    TORCH_CHECK(count > 0, "it is cut short");
    next += count;
    offset += count;
    size -= count;
  }
}

std::string Archive::bytes(uint64_t offset, uint64_t size) const {
  TORCH_CHECK(offset <= file_size_ && size <= file_size_ - offset, "it is cut short");
  std::string read(size, '\0');
  read_into(read.data(), offset, size);
  return read;
}

// A zip archive ends with the place of its directory, and perhaps a comment.
Archive::Directory Archive::find_directory() const {
  const uint64_t begin = file_size_ - std::min(file_size_, kEnd + kComment);
  const std::string tail = bytes(begin, file_size_ - begin);
  const std::size_t found = tail.rfind("PK\5\6");
  TORCH_CHECK(found != std::string::npos && tail.size() - found >= kEnd, "it is cut short, or no archive");
  const char* const end = tail.data() + found;
  const Directory small{number<uint16_t>(end + 10), number<uint32_t>(end + 12), number<uint32_t>(end + 16)};
  if (small.records != 0xffff && small.size != kLarge && small.offset != kLarge) return small;
  TORCH_CHECK(begin + found >= kLocator64, "it is cut short");
  const std::string locator = bytes(begin + found - kLocator64, kLocator64);
  TORCH_CHECK(locator.starts_with("PK\6\7"), "its directory is damaged");
  const std::string large = bytes(number<uint64_t>(&locator[8]), kEnd64);
  TORCH_CHECK(large.starts_with("PK\6\6"), "its directory is damaged");
  return {number<uint64_t>(&large[32]), number<uint64_t>(&large[40]), number<uint64_t>(&large[48])};
}

void Archive::add_records(const Directory& directory) {
  const std::string entries = bytes(directory.offset, directory.size);
  end_of_records_ = directory.offset;
  uint64_t begin = 0;
  for (uint64_t i = 0; i < directory.records; ++i) {
    begin += add_record(entries.data() + begin, entries.size() - begin);
  }
  TORCH_CHECK(!records_.empty(), "it holds no records");
  std::vector<Record> in_order;
  for (const auto& [name, record] : records_) in_order.push_back(record);
  std::sort(in_order.begin(), in_order.end(), [](const Record& a, const Record& b) { return a.header < b.header; });
  uint64_t end = 0;
  for (const Record& record : in_order) {
    TORCH_CHECK(record.header >= end, "its records lie on each other");
    end = record.header + kLocalHeader + record.size;
  }
}

// Returns the size of the entry.
uint64_t Archive::add_record(const char* entry, uint64_t available) {
  TORCH_CHECK(available >= kCentralHeader && number<uint32_t>(entry) == 0x02014b50, "its directory is damaged");
  const uint64_t name_size = number<uint16_t>(entry + 28), extra_size = number<uint16_t>(entry + 30);
  const uint64_t entry_size = kCentralHeader + name_size + extra_size + number<uint16_t>(entry + 32);
  TORCH_CHECK(available >= entry_size, "its directory is damaged");
  const std::string name(entry + kCentralHeader, name_size);
  TORCH_CHECK(number<uint16_t>(entry + 10) == 0 && (number<uint16_t>(entry + 8) & 1) == 0, "the record ", name,
              " is compressed or encrypted, which torch.save() never does");
  uint64_t stored = number<uint32_t>(entry + 20), size = number<uint32_t>(entry + 24);
  uint64_t header = number<uint32_t>(entry + 42);
  std::string_view extra(entry + kCentralHeader + name_size, extra_size);
  while (extra.size() >= 4) {  // fields of an identifier, a size and as many bytes
    const uint64_t field = std::min<uint64_t>(number<uint16_t>(extra.data() + 2), extra.size() - 4);
    std::string_view numbers = extra.substr(4, field);
    for (uint64_t* value : {&size, &stored, &header}) {
      if (number<uint16_t>(extra.data()) != 1 || *value != kLarge || numbers.size() < 8) continue;
      *value = number<uint64_t>(numbers.data());
      numbers.remove_prefix(8);
    }
    extra.remove_prefix(4 + field);
  }
  TORCH_CHECK(stored == size && size <= file_size_ && header < end_of_records_, "the record ", name,
              " is larger than the file or outside it");
  if (records_.empty()) folder_ = name.substr(0, name.find('/') + 1);
  TORCH_CHECK(records_.emplace(name, Record{header, size, number<uint32_t>(entry + 16)}).second, "the record ", name,
              " is there twice");
  return entry_size;
}

bool Archive::has(const std::string& name) const { return records_.contains(folder_ + name); }

Archive::Bytes Archive::read(const std::string& name) const {
  const auto found = records_.find(folder_ + name);
  TORCH_CHECK(found != records_.end(), "it has no record ", name);
  const Record& record = found->second;
  const std::string header = bytes(record.header, kLocalHeader);
  TORCH_CHECK(header.starts_with("PK\3\4"), "the record ", name, " is damaged");
  const uint64_t begin = record.header + kLocalHeader + number<uint16_t>(&header[26]) + number<uint16_t>(&header[28]);
  TORCH_CHECK(begin <= end_of_records_ && record.size <= end_of_records_ - begin, "the record ", name,
              " is outside the file");
  Bytes read{c10::GetAllocator(c10::kCPU)->allocate(record.size), record.size};
  read_into(read.data.get(), begin, record.size);
  const uint32_t checksum = checksum_of(static_cast<const char*>(read.data.get()), record.size);
  TORCH_CHECK(record.checksum == 0 || record.checksum == checksum, "the record ", name,
              " is damaged: its checksum is another");
  return read;
}

}  // namespace torchdion::optim
