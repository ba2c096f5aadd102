#pragma once

#include <exception>

#include "base/error.h"

namespace ftrun {

/// Turns an exception into what it means to the one who runs the command: an Error is itself; what
/// the system refused (files, threads, memory) is kEnvironment, with the path where the exception
/// knows it; all else is a defect of ftrun.
Error as_error(const std::exception& exception);

/// Says whether an exception was thrown for a lack of memory: what std::terminate can still ask.
/// False for none.
bool lacks_memory(const std::exception_ptr& thrown);

}  // namespace ftrun
