#pragma once

#include <cstdint>
#include <set>
#include <utility>

namespace ftrun {

/// OpenSocket is a descriptor with its inode: descriptor numbers are reused, inodes are not.
using OpenSocket = std::pair<int, uint64_t>;

/// Lists this process's TCP connections.
std::set<OpenSocket> list_tcp_connections();

/// Returns the bytes that the kernel has received over those of `sockets` that are still open
/// (TCP_INFO).
int64_t count_received_bytes(const std::set<OpenSocket>& sockets);

}  // namespace ftrun
