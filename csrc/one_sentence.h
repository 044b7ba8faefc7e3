// Errors as a C++ program sees them: what() of those that LibTorch's macros throw goes on with a backtrace, and most
// programs print what().
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <typeinfo>

namespace torchdion {

// The first line of what it says, without a backtrace.
inline std::string sentence_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string all = of_torch ? of_torch->what_without_backtrace() : error.what();
  return all.substr(0, all.find('\n'));
}

// In the handler of a public function: throws the error again, of its own type, with its sentence alone. Errors of
// other types than our own checks have, such as a lack of memory, go on as they are.
[[noreturn]] inline void rethrow_in_one_sentence() {
  try {
    throw;
  } catch (const c10::ValueError& error) {
    throw c10::ValueError(error.what_without_backtrace(), nullptr);
  } catch (const c10::NotImplementedError& error) {
    throw c10::NotImplementedError(error.what_without_backtrace(), nullptr);
  } catch (const c10::DistBackendError& error) {
    throw c10::DistBackendError(error.what_without_backtrace(), nullptr);
  } catch (const c10::Error& error) {
    if (typeid(error) == typeid(c10::Error)) throw c10::Error(error.what_without_backtrace(), nullptr);
    throw;
  }
}

}  // namespace torchdion
