#pragma once

#include <exception>

namespace ftrun {

/// Says whether the exception was thrown for a lack of memory: LibTorch says that in an exception
/// of its own, and in words.
bool is_out_of_memory(const std::exception& exception);

/// Takes such an exception for the one that the rest of the engine knows: std::bad_alloc.
/// All others it leaves alone.
void rethrow_out_of_memory(const std::exception& exception);

}  // namespace ftrun
