#pragma once

#include <exception>

#include "base/error.h"

namespace ftrun {

/// Turns an exception into the Error that the user sees: an Error stays itself; what the system
/// refused (files, threads, memory) is kEnvironment, with the path where the exception knows it;
/// anything else is a defect of ftrun.
Error as_error(const std::exception& exception);

/// Says whether an exception was thrown for lack of memory; a terminate handler may call it. False
/// for no exception.
bool lacks_memory(const std::exception_ptr& thrown);

}  // namespace ftrun
