#pragma once

#include <exception>

#include "base/error.h"

namespace ftrun {

/// Converts an exception of training as as_error() does, with a remedy for lack of memory, which
/// depends on the config.
Error training_error(const std::exception& exception);

}  // namespace ftrun
