// train TEXT [flags]: trains a GPT on the bytes of a text file with torchdion::Dion. --help lists the flags.
#include "problem.h"
#include "run.h"

int main(int argc, char** argv) {
  return gpt::guarded([&] { return gpt::run(argv[0], {argv + 1, argv + argc}); });
}
