#include "words.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <charconv>
#include <map>
#include <utility>

namespace torchdion {

namespace {

thread_local const Words* spoken = nullptr;

}  // namespace

const Words& words() {
  static const Words of_no_one;
  return spoken ? *spoken : of_no_one;
}

bool in_python() { return words().language == Language::python; }

Speaking::Speaking(Words words) : words_(std::move(words)), outer_(spoken) { spoken = &words_; }

Speaking::~Speaking() { spoken = outer_; }

std::string prefix() { return c10::str(words().front, ": "); }

std::string called(const at::Tensor& X) {
  const std::string name = words().name ? words().name(X) : "";
  return c10::str(name.empty() ? "a parameter" : name, " of shape ", X.sizes());
}

std::string shown(c10::ScalarType dtype) {
  return in_python() ? std::string(c10::getDtypeNames(dtype).first) : c10::toString(dtype);
}

std::string shown_type(c10::ScalarType dtype) { return (in_python() ? "torch." : "") + shown(dtype); }

std::string shown(c10::Layout layout) {
  if (!in_python()) return c10::str(layout);
  static const std::map<c10::Layout, const char*> names{
      {c10::Layout::Strided, "strided"},      {c10::Layout::Sparse, "sparse_coo"},
      {c10::Layout::SparseCsr, "sparse_csr"}, {c10::Layout::SparseCsc, "sparse_csc"},
      {c10::Layout::SparseBsr, "sparse_bsr"}, {c10::Layout::SparseBsc, "sparse_bsc"}};
  const auto found = names.find(layout);
  return "torch." + (found == names.end() ? c10::str(layout) : found->second);
}

std::string shown(c10::IntArrayRef sizes) {
  if (!in_python()) return c10::str(sizes);
  std::string all;
  for (const int64_t size : sizes) all += c10::str(all.empty() ? "" : ", ", size);
  return c10::str("(", all, sizes.size() == 1 ? ",)" : ")");
}

std::string shown(bool value) {
  if (in_python()) return value ? "True" : "False";
  return value ? "true" : "false";
}

std::string shown_none() { return in_python() ? "None" : "none"; }

std::string shown_name(const std::string& name) { return in_python() ? "'" + name + "'" : name; }

std::string shown(double value) {
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

}  // namespace torchdion
