#pragma once

#include <exception>

#include "base/error.h"

namespace ftrun {

/// What an exception means to the one who runs the command: an Error is itself; what the system
/// refused (files, threads, memory) is kEnvironment, with the path where the exception knows it; all
/// else is a defect of ftrun.
Error as_error(const std::exception& exception);

}  // namespace ftrun
