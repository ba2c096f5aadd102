#pragma once

#include <exception>

namespace ftrun {

/// Returns whether the exception was thrown because memory ran out. LibTorch reports this by its
/// own exception type, or only in the message of a general one.
bool is_out_of_memory(const std::exception& exception);

/// Throws std::bad_alloc, which the rest of the engine handles, if memory ran out; does nothing for
/// all other exceptions.
void rethrow_out_of_memory(const std::exception& exception);

}  // namespace ftrun
