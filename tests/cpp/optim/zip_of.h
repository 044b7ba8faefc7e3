// Archives as torch.save() writes them, and as it does not.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace torchdion {

template <class T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline uint32_t crc32(const std::string& bytes) {
  uint32_t value = ~0u;
  for (const char byte : bytes) {
    value ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0xedb88320u : 0);
  }
  return ~value;
}

using Records = std::vector<std::pair<std::string, std::string>>;

// With the record by which torch knows its archives, in the folder of the first one.
inline std::string zip_of(Records records, bool has_checksums = true) {
  if (!records.empty()) records.emplace_back(records[0].first.substr(0, records[0].first.find('/')) + "/version", "3");
  std::string file, directory;
  for (const auto& [name, bytes] : records) {
    const std::string common = std::string(8, '\0') + little_endian<uint32_t>(has_checksums ? crc32(bytes) : 0) +
                               little_endian<uint32_t>(bytes.size()) + little_endian<uint32_t>(bytes.size()) +
                               little_endian<uint16_t>(name.size()) + little_endian<uint16_t>(0);
    directory += std::string("PK\1\2\24\0\24\0", 8) + common + std::string(10, '\0') +
                 little_endian<uint32_t>(file.size()) + name;
    file += std::string("PK\3\4\24\0", 6) + common + name + bytes;
  }
  const std::string end = std::string("PK\5\6\0\0\0\0", 8) + little_endian<uint16_t>(records.size()) +
                          little_endian<uint16_t>(records.size()) + little_endian<uint32_t>(directory.size()) +
                          little_endian<uint32_t>(file.size()) + std::string(2, '\0');
  return file + directory + end;
}

}  // namespace torchdion
