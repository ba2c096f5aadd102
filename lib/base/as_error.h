#pragma once

#include <exception>

#include "base/error.h"

namespace ftrun {

/// Converts an exception to the Error that the user sees. An Error is returned unchanged. If the
/// system refused something (files, threads, memory), the Error is kEnvironment, with the path if
/// the exception holds one. Any other exception is a defect of ftrun.
Error as_error(const std::exception& exception);

/// Returns whether an exception was thrown because memory ran out; false for no exception. A
/// terminate handler may call it.
bool is_out_of_memory(const std::exception_ptr& thrown);

}  // namespace ftrun
