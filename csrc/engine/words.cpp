#include "engine/words.h"

#include <c10/util/StringUtil.h>

#include <utility>

namespace torchdion::engine {

namespace {

thread_local const Words* spoken = nullptr;

}  // namespace

const Words& words() {
  static const Words of_cpp;
  return spoken ? *spoken : of_cpp;
}

Speaking::Speaking(Words words) : words_(std::move(words)), outer_(spoken) { spoken = &words_; }

Speaking::~Speaking() { spoken = outer_; }

std::string prefix() { return c10::str(words().front, ": "); }

std::string called(const at::Tensor& X) {
  const std::string name = words().name ? words().name(X) : "";
  return c10::str(name.empty() ? "a parameter" : name, " of shape ", X.sizes());
}

}  // namespace torchdion::engine
