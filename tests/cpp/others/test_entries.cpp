#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "others/entries.h"

namespace torchdion::others {

namespace {

c10::IValue list_of(const std::vector<c10::IValue>& values) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (const c10::IValue& value : values) list.push_back(value);
  return list;
}

TEST(Entries, AreShownAsPythonShowsThem) {
  const std::vector<std::pair<c10::IValue, const char*>> shown{
      {c10::IValue(), "None"},
      {true, "True"},
      {7, "7"},
      {0.5, "0.5"},
      {-2.0, "-2.0"},
      {1e-5, "1e-05"},
      {1e15, "1e+15"},
      {1e30, "1e+30"},
      {std::numeric_limits<double>::infinity(), "inf"},
      {std::numeric_limits<double>::quiet_NaN(), "nan"},
      {"fast", "'fast'"},
      {list_of({}), "[]"},
      {list_of({1, "a", c10::IValue()}), "[1, 'a', None]"},
  };
  for (const auto& [value, text] : shown) EXPECT_EQ(entry_text(value), text);
}

TEST(Entries, ThatAreLongOrOfSeveralLinesAreShownByTheirKind) {
  EXPECT_EQ(entry_text(std::string(101, 'a')), "a value of type str");
  EXPECT_EQ(entry_text("a\nb"), "a value of type str");
  EXPECT_EQ(entry_text(list_of(std::vector<c10::IValue>(1000, 1))), "a value of type list");
  EXPECT_EQ(entry_text(list_of({list_of({})})), "a value of type list");
  EXPECT_EQ(entry_text(at::zeros({2})), "a value of type Tensor");
}

TEST(Entries, AreTheSameWhereTheirNumbersAre) {
  EXPECT_TRUE(is_same(1, 1.0));
  EXPECT_TRUE(is_same(false, 0));
  EXPECT_TRUE(is_same(at::ones({1}), 1));
  EXPECT_TRUE(is_same(c10::ivalue::Tuple::create(1, 0.5), list_of({1.0, 0.5})));
  EXPECT_FALSE(is_same(c10::ivalue::Tuple::create(1, 0.5), list_of({1.0})));
  EXPECT_FALSE(is_same("1", 1));
  EXPECT_FALSE(is_same(c10::IValue(), 0));
  const at::Tensor without_memory = at::ones({1}, at::kMeta);
  EXPECT_TRUE(is_same(without_memory, without_memory));
  EXPECT_FALSE(is_same(without_memory, at::ones({1}, at::kMeta)));
}

TEST(Entries, AreOfKindsThatPythonHas) {
  EXPECT_EQ(kind_of(c10::IValue()), "NoneType");
  EXPECT_EQ(kind_of(1), "int");
  EXPECT_EQ(kind_of(true), "bool");
  EXPECT_EQ(kind_of(1.0), "float");
  EXPECT_EQ(kind_of("a"), "str");
  EXPECT_EQ(kind_of(list_of({})), "list");
  EXPECT_EQ(kind_of(c10::ivalue::Tuple::create(1, 2)), "tuple");
  EXPECT_EQ(kind_of(c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get())), "dict");
  EXPECT_EQ(kind_of(at::zeros({})), "Tensor");
}

}  // namespace

}  // namespace torchdion::others
