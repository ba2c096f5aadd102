#pragma once

#include <string_view>

namespace ftrun {

/// Writes all of `bytes`, however long a pipe or terminal has no room: also where another program
/// has made the descriptor that it shares with us one that does not wait. False, with errno, where
/// it cannot be written.
bool write_whole(int fd, std::string_view bytes);

}  // namespace ftrun
