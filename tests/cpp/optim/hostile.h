// Files that no optimizer has written.
#pragma once

#include <gtest/gtest.h>
#include <torchdion/checkpoint.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

#include "optim/model.h"
#include "optim/zip_of.h"

namespace torchdion {

// A file of these bytes as read_checkpoint() takes it: refused in one sentence, or loaded; in less than a second.
class Hostile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path); }

  void write(const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

  // Why it is refused; empty: it is loaded.
  std::string refusal_of(const std::string& bytes) {
    write(bytes);
    const std::clock_t begin = std::clock();  // of this process, whatever else the machine does
    const std::string message = message_of([&] { read_checkpoint(path); });
    EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    if (message.empty()) return message;
    const std::string begins = "torchdion::read_checkpoint: " + path + " cannot be read: ";
    EXPECT_EQ(message.substr(0, begins.size()), begins);
    return message.substr(std::min(begins.size(), message.size()));
  }

  const std::string path =
      (std::filesystem::temp_directory_path() / ("torchdion.hostile." + std::to_string(getpid()))).string();
};

}  // namespace torchdion
