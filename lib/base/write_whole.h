#pragma once

#include <string_view>

namespace ftrun {

/// Writes all of `bytes`, however long a pipe or terminal has no room, also where another program
/// that shares the descriptor has made it non-blocking. Returns false, with errno, when the write
/// fails.
bool write_whole(int fd, std::string_view bytes);

}  // namespace ftrun
