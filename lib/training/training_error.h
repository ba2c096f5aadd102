#pragma once

#include <exception>

#include "base/error.h"

namespace ftrun {

/// Calls as_error() for an exception of training: the config decides what training needs memory
/// for.
Error training_error(const std::exception& exception);

}  // namespace ftrun
