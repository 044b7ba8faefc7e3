// The warnings of a test, in the order in which they came.
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

namespace torchdion {

struct Warnings : c10::WarningHandler {
  std::vector<std::string> messages;
  c10::WarningUtils::WarningHandlerGuard guard{this};
  void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
};

}  // namespace torchdion
