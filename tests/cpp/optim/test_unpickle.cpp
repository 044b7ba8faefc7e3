#include "optim/unpickle.h"

#include <torchdion/checkpoint.h>

#include "optim/hostile.h"

namespace torchdion {

namespace {

using namespace std::string_literals;

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::string text(const std::string& value) { return "X" + little_endian<uint32_t>(value.size()) + value; }

std::string tuple(const std::vector<int64_t>& values) {
  std::string all = "(";
  for (const int64_t value : values) all += "\x8a\x08" + little_endian(value);
  return all + "t";
}

std::string tensor(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t offset = 0,
                   const std::string& type = "FloatStorage", const std::string& key = "0", int64_t numel = 4,
                   const std::string& metadata = "") {
  const std::string storage = "(" + text("storage") + "ctorch\n" + type + "\n" + text(key) + text("cpu") + "\x8a\x08" +
                              little_endian(numel) + "tQ";
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + "\x8a\x08" + little_endian(offset) + tuple(sizes) +
         tuple(strides) + "\x89" + "ccollections\nOrderedDict\n)R" + metadata + "tR";
}

class Pickles : public Hostile {
 protected:
  static std::string archive(const std::string& pickled) {
    return zip_of({{"a/data.pkl", "\x80\x02" + pickled + "."}, {"a/data/0", std::string(16, '\0')}});
  }

  std::string refusal(const std::string& pickled) { return refusal_of(archive(pickled)); }

  c10::IValue value(const std::string& pickled) {
    write(archive(pickled));
    return read_checkpoint(path);
  }
};

TEST_F(Pickles, ThatHoldThemselvesAreRefused) {
  const std::string refused = "a container holds itself, or changes after something referred to it";
  EXPECT_EQ(refusal("]q\0h\0a"s), refused);
  EXPECT_EQ(refusal("]q\0(h\0e"s), refused);
  EXPECT_EQ(refusal("}q\0(K\1h\0u"s), refused);
  EXPECT_EQ(refusal("}q\0K\1h\0s"s), refused);
  EXPECT_EQ(refusal("]q\0(h\0te"s), "its pickle is damaged");  // the tuple has taken the list
  EXPECT_EQ(refusal("(]q\0(h\0teK\1t"s), "its pickle is damaged");
  EXPECT_EQ(refusal("(]q\0]q\1(h\0eh\1h\0h\1at"s), refused);  // in each other
  EXPECT_EQ(refusal("(}q\0]q\1h\0ah\0K\1h\1st"s), refused);
}

TEST_F(Pickles, OfSharedObjectsShareThem) {
  const c10::IValue pair = value("](]q\0(K\1K\2eh\0e"s);  // x = [1, 2]; [x, x]
  ASSERT_EQ(pair.toListRef().size(), 2u);
  EXPECT_EQ(pair.toListRef()[0].internalToPointer(), pair.toListRef()[1].internalToPointer());
  EXPECT_EQ(pair.toListRef()[1].toListRef()[1].toInt(), 2);
  const c10::IValue filled_twice = value("]q\0(K\1K\2e(K\3e"s);
  EXPECT_EQ(filled_twice.toListRef().size(), 3u);
}

TEST_F(Pickles, DeeplyNestedAreRefused) {
  const std::string refused = "its containers are nested more than 100 deep";
  for (const int depth : {101, 100000}) {
    EXPECT_EQ(refusal(repeated("](", depth) + "K\1" + repeated("e", depth)), refused);
    EXPECT_EQ(refusal(repeated("(", depth) + "K\1" + repeated("t", depth)), refused);
    EXPECT_EQ(refusal("K\1" + repeated("\x85", depth)), refused);
    EXPECT_EQ(refusal(repeated("}K\1", depth) + "K\1" + repeated("s", depth)), refused);
  }
  EXPECT_EQ(refusal(repeated("](", 100) + "K\1" + repeated("e", 100)), "");
}

// A list of ten references to a list of ten references, and so on.
std::string laughs(int level) {
  const std::string begin = "]q" + std::string(1, static_cast<char>(level)) + "(";
  if (level == 0) return begin + repeated("K\1", 10) + "e";
  return begin + laughs(level - 1) + repeated("h" + std::string(1, static_cast<char>(level - 1)), 9) + "e";
}

TEST_F(Pickles, OfValuesThatRepeatTooOftenAreRefused) {
  EXPECT_EQ(refusal(laughs(4)), "");
  for (const int level : {6, 11, 40}) {
    EXPECT_EQ(refusal(laughs(level)), "its containers hold each other too many times") << level;
  }
}

TEST_F(Pickles, WithLengthsBeyondTheirEndAreRefused) {
  const std::string refused = "its pickle is cut short";
  EXPECT_EQ(refusal("X\xff\xff\xff\x7f"s + "abc"), refused);
  EXPECT_EQ(refusal("X\xff\xff\xff\xff"s + "abc"), refused);
  EXPECT_EQ(refusal("\x8a\xff\1\1"s), refused);
  EXPECT_EQ(refusal("ctorch"), refused);
  EXPECT_EQ(refusal("X"), refused);
  EXPECT_EQ(refusal("\x8a\x09\1\1\1\1\1\1\1\1\1"s), "it holds an integer of more than 64 bits");
  EXPECT_EQ(refusal("j\xff\xff\xff\x7f"s), "its pickle refers to an object that it does not hold");
  EXPECT_EQ(refusal("h\0"s), "its pickle refers to an object that it does not hold");
  EXPECT_EQ(value("K\7r\xff\xff\xff\xff"s).toInt(), 7);  // and takes no memory for what it skips
}

TEST_F(Pickles, OfOtherObjectsAreRefusedByName) {
  EXPECT_EQ(refusal("cos\nsystem\n" + text("ls") + "\x85R"),
            "it holds an object of os.system; there may be tensors, numbers, strings and containers of them");
  for (const char* operation : {"0", "1", "2", "i", "o", "\x81", "\x8b", "\x8c", "\x95", "B", "S", "I", "V", "P"}) {
    EXPECT_EQ(refusal("K\1"s + operation + std::string(20, '\0'))
                  .find("its pickle has an operation that torch.save() does not use: "),
              0u)
        << operation;
  }
  EXPECT_EQ(refusal("cos\nsystem\n"), "its pickle is damaged");
  EXPECT_EQ(refusal("]cos\nsystem\na"), "it holds os.system where a value is due");
  EXPECT_EQ(refusal("](cos\nsystem\nte"), "its pickle is damaged");
  EXPECT_EQ(refusal("cos\nsystem\n\x85"), "its pickle is damaged");
  EXPECT_EQ(refusal("}]K\1s"), "a key of a dict must be a string or a number, got GenericList");
}

TEST_F(Pickles, OfDamagedStacksAreRefused) {
  for (const std::string& pickled :
       {""s,        "("s,    "a"s,     "e"s,         "s"s,      "u"s,       "t"s,         "R"s,      "Q"s,
        "b"s,       "q\0"s,  "\x85"s,  "K\1a"s,      "](K\1a"s, "}K\1a"s,   "](K\1u"s,    "}(K\1u"s, "K\1K\2"s,
        "K\1K\2R"s, "K\1b"s, "(q\0t"s, "K\1q\0q\1"s, "K\1Q"s,   "K\1.K\2"s, "}(K\1K\2(u"s}) {
    EXPECT_NE(refusal(pickled), "") << testing::PrintToString(pickled);
  }
}

TEST_F(Pickles, WithTensorsBeyondTheirRecordsAreRefused) {
  EXPECT_EQ(value(tensor({2, 2}, {2, 1})).toTensor().sizes(), at::IntArrayRef({2, 2}));
  struct Case {
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0, numel = 4;
  };
  constexpr int64_t large = int64_t{1} << 62, largest = std::numeric_limits<int64_t>::max();
  for (const Case& hostile : std::vector<Case>{{{large, 4}, {4, 1}},
                                               {{-1, 4}, {4, 1}},
                                               {{4, 4}, {large, 1}},
                                               {{2, 2}, {-2, 1}, 3},
                                               {{2, 2}, {2, 1}, -4},
                                               {{2, 2}, {2, 1}, large},
                                               {{2, 2}, {2, 1}, 1},
                                               {{2, 2}, {2, 1}, 0, int64_t{1} << 61},
                                               {{2, 2}, {2, 1}, 0, -1},
                                               {{int64_t{1} << 31, int64_t{1} << 31, 4}, {0, 0, 0}},
                                               {{2, 2, 2}, {2, 1}},
                                               {{largest, largest}, {0, 0}},
                                               {{0}, {1}, largest},
                                               {std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1)}}) {
    EXPECT_NE(refusal(tensor(hostile.sizes, hostile.strides, hostile.offset, "FloatStorage", "0", hostile.numel)), "")
        << at::IntArrayRef(hostile.sizes);
  }
  for (const char* type : {"DoubleStorage", "QInt8Storage", "UntypedStorage", "NoSuchStorage", "Tensor"}) {
    EXPECT_NE(refusal(tensor({2, 2}, {2, 1}, 0, type)), "") << type;
  }
  EXPECT_EQ(refusal(tensor({2, 2}, {2, 1}, 0, "FloatStorage", "7")), "it has no record data/7");
  EXPECT_EQ(refusal(tensor({2, 2}, {2, 1}, 0, "FloatStorage", "../data.pkl")), "it has no record data/../data.pkl");
}

TEST_F(Pickles, OfNegativeAndConjugateViewsAreThese) {
  const at::Tensor x = at::arange(4, at::kFloat), z = at::complex(x, x + 1);
  for (const at::Tensor& saved : {at::_neg_view(x), z.conj(), at::imag(z.conj())}) {
    write_checkpoint(saved, path);
    EXPECT_TRUE(at::equal(read_checkpoint(path).toTensor(), saved.clone()));
  }
  const auto with = [](const std::string& metadata) { return tensor({2}, {1}, 0, "FloatStorage", "0", 4, metadata); };
  EXPECT_TRUE(value(with("}" + text("neg") + "\x88s")).toTensor().is_neg());
  EXPECT_FALSE(value(with("N")).toTensor().is_neg());
  EXPECT_EQ(refusal(with("}" + text("zero") + "\x88s")), "a tensor has a mark that is not known");
  for (const std::string& damaged : {"}" + text("conj") + "\x88s", "}" + text("neg") + "K\1s", "]"s, "NN"s}) {
    EXPECT_EQ(refusal(with(damaged)), "its pickle is damaged") << testing::PrintToString(damaged);
  }
}

// Keys whose hashes begin alike make a c10::Dict double its table for each of them.
TEST_F(Pickles, WithKeysThatAreMadeToCollideAreRefused) {
  uint64_t inverse = 1;  // of the odd number that Fibonacci hashing multiplies by, modulo 2^64
  for (int i = 0; i < 6; ++i) inverse *= 2 - inverse * 11400714819323198485ull;
  std::string pickled = "}(";
  for (uint64_t i = 0; i < 60; ++i) pickled += "\x8a\x08" + little_endian(i * inverse) + "N";
  EXPECT_EQ(refusal(pickled + "u"), "the keys of a dict are made to collide");
  const std::string nan = "G" + std::string("\x7f\xf8\0\0\0\0\0\0", 8) + "N";
  EXPECT_EQ(refusal("}(" + repeated(nan, 60) + "u"), "the keys of a dict are made to collide");
  pickled = "}(";
  for (int32_t i = 0; i < 20000; ++i) pickled += "J" + little_endian(i) + "N" + text(std::to_string(i)) + "N";
  EXPECT_EQ(value(pickled + "u").toGenericDict().size(), 40000u);
}

}  // namespace

}  // namespace torchdion
