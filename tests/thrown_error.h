#pragma once

#include <exception>
#include <functional>
#include <string>

#include "base/error.h"
#include "waiting.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {

/// Returns the Error that `work` throws; one with code kOk and the message "no error" if it throws
/// none.
inline Error error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  return Error(ExitCode::kOk, "no error");
}

/// Returns "exit code: message | remedy" of the Error that `work` throws; "no error" if it throws
/// none.
inline std::string error_line_of(const std::function<void()>& work) {
  const Error error = error_of(work);
  if (error.code() == ExitCode::kOk) return "no error";
  return cat(static_cast<int>(error.code()), ": ", error.message(), " | ", error.remedy());
}

/// Returns what() of the exception that `work` throws, for an Error its message and remedy; "" if
/// it throws none.
inline std::string error_text_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return failure_message(error);
  }
  return "";
}

/// Requires that `work` throws an Error with this code and a remedy; returns its message.
inline std::string require_error(ExitCode code, const std::function<void()>& work) {
  const Error error = error_of(work);
  REQUIRE(static_cast<int>(error.code()) == static_cast<int>(code));
  REQUIRE_FALSE(error.remedy().empty());
  return error.message();
}

}  // namespace ftrun::testing
