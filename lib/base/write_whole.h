#pragma once

#include <string_view>

namespace ftrun {

/// Writes all of `bytes`, waiting as long as a pipe or terminal is full, even if another program
/// that shares the descriptor has made it non-blocking. Returns false, with errno set, if the write
/// fails.
bool write_whole(int fd, std::string_view bytes);

}  // namespace ftrun
