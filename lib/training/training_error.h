#pragma once

#include <exception>

#include "base/error.h"

namespace ftrun {

/// as_error() of what training throws: what it needs memory for is the config's choice.
Error training_error(const std::exception& exception);

}  // namespace ftrun
