// What is said while a test routes models.
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

namespace torchdion {

struct WarningsOfRouting : c10::WarningHandler {
  std::vector<std::string> sentences;
  c10::WarningUtils::WarningHandlerGuard guard{this};
  void process(const c10::Warning& warning) override { sentences.push_back(warning.msg()); }
};

}  // namespace torchdion
