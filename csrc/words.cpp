#include "words.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <charconv>
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
