// What refusals say.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace torchdion {

// The sentence of the error that `call` throws; empty when it throws none. Errors of other types pass.
template <class Error = c10::Error, class Call>
std::string sentence_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace torchdion
