#pragma once

#include <vector>

#include "graph/storage.h"
#include "program/program.h"

namespace ftrun {

/// When each buffer is in use, in positions of the instruction list. An instruction of another lane
/// than compute may run as soon as what it waits for is done and until compute waits for it, so its
/// buffers live all that time.
std::vector<StorageRequest> buffer_lifetimes(const Program& program);

}  // namespace ftrun
