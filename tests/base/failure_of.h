#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "base/text.h"

namespace ftrun::testing {

/// Returns "exit code: message | remedy" of the error that `body` throws.
inline std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return cat(static_cast<int>(error.code()), ": ", error.message(), " | ", error.remedy());
  }
  return "no failure";
}

}  // namespace ftrun::testing
