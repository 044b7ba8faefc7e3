#include "problem.h"

#include <filesystem>
#include <iostream>

namespace gpt {

namespace {

int complain(const std::string& words, Fault fault) {
  const std::string sentence = words.substr(0, words.find('\n'));  // below it torch puts the calls that led there
  std::cerr << "train: " << sentence << std::endl;
  return static_cast<int>(fault);
}

}  // namespace

int guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const Problem& problem) {
    return complain(problem.what(), problem.fault);
  } catch (const std::filesystem::filesystem_error& error) {
    return complain(error.path1().string() + ": " + error.code().message(), Fault::run);
  } catch (const std::exception& error) {
    return complain(error.what(), Fault::run);
  }
}

}  // namespace gpt
