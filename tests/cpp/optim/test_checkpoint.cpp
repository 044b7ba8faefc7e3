#include <ATen/core/Dict.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torchdion/checkpoint.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "optim/model.h"

namespace torchdion {

namespace {

namespace fs = std::filesystem;

class Checkpoint : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }

  const fs::path folder = fs::temp_directory_path() / ("torchdion." + std::to_string(getpid()));
  const std::string path = (folder / "state.pt").string();
};

TEST_F(Checkpoint, KeepsTensorsOfEveryDtypeNumbersStringsAndContainers) {
  c10::impl::GenericDict value(c10::StringType::get(), c10::AnyType::get());
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong}) {
    value.insert(c10::toString(dtype), (normal({3, 4}, 1) * 100).to(dtype));
  }
  value.insert("view", normal({6, 4}, 2).mT().slice(0, 1, 3));
  value.insert("double", 0.1);
  value.insert("none", c10::IValue());
  value.insert("text", "words");
  value.insert("tuple", c10::ivalue::Tuple::create(true, int64_t{1} << 40));
  write_checkpoint(value, path);
  const c10::impl::GenericDict read = read_checkpoint(path).toGenericDict();
  ASSERT_EQ(read.size(), value.size());
  for (const auto& item : value) {
    const c10::IValue other = read.at(item.key());
    if (item.value().isTensor()) {
      EXPECT_TRUE(bitwise_equal(other.toTensor(), item.value().toTensor())) << item.key();
    } else {
      EXPECT_EQ(other, item.value()) << item.key();
    }
  }
}

TEST_F(Checkpoint, OfListsOfOneTypeIsReadAsListsOfAnything) {
  const std::vector<at::Tensor> tensors{at::ones({2}), at::zeros({3})};
  const std::vector<int64_t> numbers{1, 2};
  c10::Dict<std::string, c10::List<bool>> flags;
  flags.insert("flags", c10::List<bool>({true, false}));
  const c10::IValue value =
      c10::ivalue::Tuple::create(tensors, numbers, std::vector<double>{0.5}, flags, std::vector<at::Tensor>(),
                                 std::vector<std::vector<int64_t>>{numbers});
  write_checkpoint(value, path);
  const c10::IValue read = read_checkpoint(path);
  const auto& parts = read.toTupleRef().elements();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(parts[0].toListRef()[i].toTensor(), tensors[i]));
    EXPECT_EQ(parts[1].toListRef()[i].toInt(), numbers[i]);
    EXPECT_EQ(parts[5].toListRef()[0].toListRef()[i].toInt(), numbers[i]);
  }
  EXPECT_EQ(parts[2].toListRef()[0].toDouble(), 0.5);
  EXPECT_FALSE(parts[3].toGenericDict().at("flags").toListRef()[1].toBool());
  EXPECT_TRUE(parts[4].toListRef().empty());
}

TEST_F(Checkpoint, OfWhatNoReaderTakesIsRefusedAndTheOldOneIsKept) {
  write_checkpoint(at::ones({3}), path);
  const std::string refused = "torchdion::write_checkpoint: " + path + " cannot be written: ";
  const std::pair<c10::IValue, std::string> cases[] = {
      {at::ones({2, 2}).to_sparse(), "its tensors must be dense ones with memory, got SparseCPUFloatType"},
      {at::Tensor(), "its tensors must be dense ones with memory, got an undefined one"},
      {at::empty({2}, at::kMeta), "its tensors must be dense ones with memory, got MetaFloatType"},
      {c10::Device(at::kCPU),
       "it holds a value of type Device; there may be tensors, numbers, strings and containers of them"},
  };
  for (const auto& [value, sentence] : cases) {
    EXPECT_EQ(message_of([&, value = value] { write_checkpoint(c10::ivalue::Tuple::create(1, value), path); }),
              refused + sentence);
  }
  EXPECT_TRUE(bitwise_equal(read_checkpoint(path).toTensor(), at::ones({3})));
}

TEST_F(Checkpoint, ThatCannotBeWrittenLeavesTheOldOneAndNoOther) {
  write_checkpoint(at::ones({3}), path);
  const c10::IValue unpicklable = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  EXPECT_EQ(message_of([&] {
              write_checkpoint(unpicklable, path);
            }).find("torchdion::write_checkpoint: " + path + " cannot be written: "),
            0u);
  EXPECT_TRUE(bitwise_equal(read_checkpoint(path).toTensor(), at::ones({3})));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
}

TEST_F(Checkpoint, InAFolderThatIsMissingIsRefusedByName) {
  const std::string missing = (folder / "missing" / "state.pt").string();
  EXPECT_EQ(message_of([&] { write_checkpoint(1, missing); }),
            "torchdion::write_checkpoint: " + missing + " cannot be written: No such file or directory");
  EXPECT_EQ(message_of([&] { read_checkpoint(missing); }),
            "torchdion::read_checkpoint: " + missing + " cannot be read: No such file or directory");
}

TEST_F(Checkpoint, CutShortOrOfRandomBytesIsRefusedInOneSentence) {
  write_checkpoint(normal({30, 40}, 1), path);
  std::string bytes;
  {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  for (const std::string& damaged :
       {std::string(), bytes.substr(0, 100), bytes.substr(0, bytes.size() - 10), std::string(1000, 'x')}) {
    std::ofstream(path, std::ios::binary) << damaged;
    const std::string message = message_of([&] { read_checkpoint(path); });
    EXPECT_EQ(message.find("torchdion::read_checkpoint: " + path + " cannot be read: it is cut short"), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST_F(Checkpoint, OnAFullDiskOrOverAFolderIsRefusedInTheSystemsWordsWithoutABacktrace) {
  write_checkpoint(at::ones({3}), path);
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 2000, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string what;
  try {
    write_checkpoint(at::ones({3000}), path);
  } catch (const c10::Error& error) {
    what = error.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(what, "torchdion::write_checkpoint: " + path + " cannot be written: File too large");
  EXPECT_TRUE(bitwise_equal(read_checkpoint(path).toTensor(), at::ones({3})));
  EXPECT_EQ(message_of([&] { write_checkpoint(1, folder.string()); }),
            "torchdion::write_checkpoint: " + folder.string() + " cannot be written: Is a directory");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  EXPECT_FALSE(fs::exists(folder.string() + "." + std::to_string(getpid()) + ".tmp"));
}

TEST_F(Checkpoint, OfAValueThatHoldsItselfIsRefused) {
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(list);
  EXPECT_EQ(message_of([&] { write_checkpoint(list, path); }),
            "torchdion::write_checkpoint: " + path +
                " cannot be written: the value holds itself or is nested more than 100 deep");
  list.pop_back();  // else it is never freed
}

}  // namespace

}  // namespace torchdion
