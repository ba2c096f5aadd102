#pragma once

#include <vector>

#include "graph/storage.h"
#include "program/program.h"

namespace ftrun {

/// When each buffer is in use, in positions of the instruction list. An instruction of another lane
/// than compute may still run until compute waits for it, so its buffers live until then.
std::vector<StorageRequest> buffer_lifetimes(const Program& program);

}  // namespace ftrun
