// How a sentence speaks to the program that called: in its language, and of the parameters as it knows them. Each front
// says its own for as long as it calls the library.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <string>

namespace torchdion {

enum class Language { cpp, python };

struct Words {
  std::string front = "torchdion";  // the class or function that the program called: every sentence begins with it
  Language language = Language::cpp;
  // The front's name for a parameter: "parameter 3 (parameter group 0)"; none, or empty: it has none.
  std::function<std::string(const at::Tensor&)> name = {};
};

// Those of the innermost Speaking of this thread.
const Words& words();
bool in_python();  // whether it speaks so

class Speaking {
 public:
  explicit Speaking(Words words);
  ~Speaking();
  Speaking(const Speaking&) = delete;
  Speaking& operator=(const Speaking&) = delete;

 private:
  Words words_;
  const Words* outer_;
};

// "torchdion::Dion: "
std::string prefix();

// "a parameter of shape [2, 3]", or "parameter 3 (parameter group 0) of shape [2, 3]".
std::string called(const at::Tensor& X);

// Values as the language writes them: "BFloat16" or "bfloat16"; "true" or "True"; "none" or "None".
std::string shown(c10::ScalarType dtype);
std::string shown_type(c10::ScalarType dtype);  // as its object is written: "Long" or "torch.int64"
std::string shown(c10::Layout layout);
std::string shown(c10::IntArrayRef sizes);  // [2, 3] or (2, 3)
std::string shown(bool value);
std::string shown_none();
std::string shown_name(const std::string& name);  // 'fc.weight' in Python, without quotes in C++
// The shortest digits that make this number.
std::string shown(double value);

}  // namespace torchdion
