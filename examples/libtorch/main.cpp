// train TEXT [flags]: trains a GPT on the bytes of a text file with torchdion::Dion. --help lists the flags.
#include <filesystem>
#include <iostream>

#include "problem.h"
#include "run.h"

namespace {

int complain(const std::string& words, gpt::Fault fault) {
  const std::string sentence = words.substr(0, words.find('\n'));  // below it torch puts the calls that led there
  std::cerr << "train: " << sentence << std::endl;
  return static_cast<int>(fault);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return gpt::run(argv[0], {argv + 1, argv + argc});
  } catch (const gpt::Problem& problem) {
    return complain(problem.what(), problem.fault);
  } catch (const std::filesystem::filesystem_error& error) {
    return complain(error.path1().string() + ": " + error.code().message(), gpt::Fault::run);
  } catch (const std::exception& error) {
    return complain(error.what(), gpt::Fault::run);
  }
}
