#pragma once

#include <exception>

#include "base/error.h"

namespace ftrun {

/// Converts an exception to the Error that the user sees. An Error is returned unchanged; a refusal
/// of the system (files, threads, memory) becomes kEnvironment, with the path where the exception
/// holds it; any other exception is a defect of ftrun.
Error as_error(const std::exception& exception);

/// Returns whether an exception was thrown for lack of memory; a terminate handler may call it.
/// Returns false for no exception.
bool lacks_memory(const std::exception_ptr& thrown);

}  // namespace ftrun
