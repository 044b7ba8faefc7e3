// What refusals say.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace torchdion {

// The sentence of the c10::Error that `call` throws; empty when it throws none.
template <class Call>
std::string sentence_of(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace torchdion
