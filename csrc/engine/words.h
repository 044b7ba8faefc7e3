// How a sentence speaks to the program that called: in the words of its language, and of the parameters as it knows
// them. Each front says its own for as long as it calls the engine.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <string>

namespace torchdion::engine {

// The defaults are those of C++.
struct Words {
  const char* front = "torchdion::Dion";  // every sentence begins with it
  const char* capturable = "capturable(true)";
  const char* raise = "nonfinite(Nonfinite::raise)";
  std::string (*dtype)(c10::ScalarType) = [](c10::ScalarType type) -> std::string { return c10::toString(type); };
  // The front's name for a parameter: "parameter 3 (parameter group 0)"; none, or empty: it has none.
  std::function<std::string(const at::Tensor&)> name = {};
};

// Those of the innermost Speaking of this thread.
const Words& words();

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

}  // namespace torchdion::engine
