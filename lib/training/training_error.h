#pragma once

#include <exception>

#include "base/error.h"

namespace ftrun {

/// Converts an exception to an Error like as_error(), and adds a remedy if memory was exhausted.
Error training_error(const std::exception& exception);

}  // namespace ftrun
