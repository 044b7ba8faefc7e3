// What went wrong, for the user: one sentence and an exit status.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

namespace gpt {

enum class Fault {
  run = 1,    // the training failed
  input = 2,  // an argument or a file is wrong
};

class Problem : public std::runtime_error {
 public:
  explicit Problem(const std::string& sentence, Fault fault = Fault::input)
      : std::runtime_error(sentence), fault(fault) {}

  const Fault fault;
};

// The exit status of body, or that of its exception, which is said in one line on stderr.
int guarded(const std::function<int()>& body);

}  // namespace gpt
