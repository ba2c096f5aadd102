#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace ftrun {

/// Calls `work` with 0 .. count-1, each once, on as many threads as there are processors that this
/// process may use, or at most `most`, and returns when all are done. Calls must not depend on each
/// other. If several throw, the error of the lowest number is thrown here.
void side_by_side(size_t count, const std::function<void(size_t)>& work, size_t most = SIZE_MAX);

}  // namespace ftrun
