#pragma once

#include <cstdint>
#include <set>
#include <utility>

namespace ftrun {

/// A descriptor with the inode behind it: numbers are used again, inodes are not.
using OpenSocket = std::pair<int, uint64_t>;

/// This process's TCP connections.
std::set<OpenSocket> tcp_connections();

/// Bytes that the kernel has received over those of them that are still open (TCP_INFO).
int64_t received_bytes(const std::set<OpenSocket>& sockets);

}  // namespace ftrun
