#include <caffe2/serialize/inline_container.h>
#include <sys/stat.h>
#include <torchdion/checkpoint.h>

#include "optim/hostile.h"

namespace torchdion {

namespace {

using Archives = Hostile;

const std::string kNumber = "\x80\x02K\x07.";  // 7

TEST_F(Archives, OfTheirRecordsAreReadByTheirOwnFolder) {
  write(zip_of({{"model/data.pkl", kNumber}}));
  EXPECT_EQ(read_checkpoint(path).toInt(), 7);
  EXPECT_EQ(refusal_of(zip_of({{"a/byteorder", "little"}, {"b/data.pkl", kNumber}})), "it has no record data.pkl");
}

TEST_F(Archives, WithoutChecksumsAreReadAndWithOthersRefused) {
  EXPECT_EQ(refusal_of(zip_of({{"a/data.pkl", kNumber}}, /*has_checksums=*/false)), "");
  std::string bytes = zip_of({{"a/data.pkl", kNumber}});
  bytes[bytes.find(kNumber) + 3] = 8;
  EXPECT_EQ(refusal_of(bytes), "the record data.pkl is damaged");
}

TEST_F(Archives, ThatTorchNeverWritesAreRefused) {
  const std::string no_archive = "it is cut short, damaged or no archive of torch.save()";
  EXPECT_EQ(refusal_of(zip_of({{"a/data.pkl", kNumber}, {"a/byteorder", "big"}})),
            "its numbers are of another byte order than little-endian");
  EXPECT_EQ(refusal_of(zip_of({})), no_archive);
  EXPECT_EQ(refusal_of(""), no_archive);
}

TEST_F(Archives, WhoseDirectorySaysThePlaceOfAnotherRecordAreRefused) {
  std::string bytes = zip_of({{"a/data.pkl", kNumber}, {"a/data/0", kNumber}});
  const std::size_t first = bytes.find("PK\1\2"), second = bytes.find("PK\1\2", first + 1);
  bytes.replace(first + 42, 4, bytes.substr(second + 42, 4));
  EXPECT_EQ(refusal_of(bytes), "the record data.pkl is damaged");
}

// torch's reader inflates the last two of these records as it opens the archive.
TEST_F(Archives, WithCompressedRecordsAreRefusedBeforeOneIsInflated) {
  for (const std::string name : {"data.pkl", "version", ".data/serialization_id"}) {
    std::string bytes = zip_of({{"a/data.pkl", kNumber}, {"a/" + name, std::string(1000, '7')}});
    const std::size_t entry = bytes.rfind("a/" + name, bytes.rfind("PK\5\6")) - 46;
    ASSERT_EQ(bytes.substr(entry, 4), "PK\1\2");
    bytes[entry + 10] = 8;
    bytes.replace(entry + 24, 4, little_endian<uint32_t>(1 << 30));  // what it would become
    EXPECT_EQ(refusal_of(bytes), "it has compressed records, which torch.save() never writes") << name;
  }
}

TEST_F(Archives, ThatAreNoFilesAreRefusedWithoutAWait) {
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(message_of([&] { read_checkpoint(path); }).find("it is no regular file"), std::string::npos);
}

TEST_F(Archives, WithSizesAndPlacesOutsideTheFileAreRefused) {
  const std::string good = zip_of({{"a/data.pkl", kNumber}});
  const std::size_t entry = good.find("PK\1\2"), end = good.rfind("PK\5\6");
  for (const std::size_t place : {entry + 20, entry + 24, entry + 42, end + 12, end + 16}) {
    for (const uint32_t value : {0xffffffffu, 0xfffffffeu, 0x7fffffffu, 1000u}) {
      std::string bytes = good;
      bytes.replace(place, 4, little_endian(value));
      EXPECT_NE(refusal_of(bytes), "") << place - entry << " " << value;
    }
  }
  for (const std::size_t place : {entry + 28, entry + 30, entry + 32, end + 10}) {
    std::string bytes = good;
    bytes.replace(place, 2, little_endian<uint16_t>(0xffff));
    EXPECT_NE(refusal_of(bytes), "") << place - entry;
  }
}

// A checkpoint of a small model.
std::string good_checkpoint(const std::string& path, c10::IValue& value) {
  const Model model;
  Dion optimizer(model.groups());
  take_steps(optimizer, model, 0, 1);
  value = optimizer.state_dict();
  write_checkpoint(value, path);
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_equal(const c10::IValue& a, const c10::IValue& b) {
  ASSERT_EQ(a.tagKind(), b.tagKind());
  if (a.isTensor()) {
    ASSERT_TRUE(bitwise_equal(a.toTensor(), b.toTensor()));
  } else if (a.isGenericDict()) {
    ASSERT_EQ(a.toGenericDict().size(), b.toGenericDict().size());
    for (const auto& item : a.toGenericDict()) expect_equal(item.value(), b.toGenericDict().at(item.key()));
  } else if (a.isList()) {
    ASSERT_EQ(a.toListRef().size(), b.toListRef().size());
    for (std::size_t i = 0; i < a.toListRef().size(); ++i) expect_equal(a.toListRef()[i], b.toListRef()[i]);
  } else {
    ASSERT_EQ(a, b);
  }
}

TEST_F(Archives, CutAnywhereAreRefused) {
  c10::IValue value;
  const std::string good = good_checkpoint(path, value);
  for (std::size_t size = 0; size < good.size(); size += 97) {
    EXPECT_NE(refusal_of(good.substr(0, size)), "") << size << " of " << good.size();
  }
  EXPECT_NE(refusal_of(good.substr(0, good.size() - 1)), "");
}

// Or in a byte that says nothing, of padding or of times.
TEST_F(Archives, WithAFlippedBitAreRefusedOrEqual) {
  c10::IValue value;
  const std::string good = good_checkpoint(path, value);
  int refused = 0;
  for (std::size_t place = 0; place < good.size(); place += 11) {
    std::string bytes = good;
    bytes[place] ^= static_cast<char>(1 << place % 8);
    if (refusal_of(bytes).empty()) {
      expect_equal(read_checkpoint(path), value);
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 200);
}

}  // namespace

}  // namespace torchdion
