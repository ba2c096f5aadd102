#pragma once

#include <exception>

namespace ftrun {

/// Returns whether the exception was thrown for lack of memory: LibTorch reports that by an
/// exception of its own, and in its message.
bool is_out_of_memory(const std::exception& exception);

/// Throws std::bad_alloc, which the rest of the engine knows, for such an exception. Does nothing
/// for all others.
void rethrow_out_of_memory(const std::exception& exception);

}  // namespace ftrun
