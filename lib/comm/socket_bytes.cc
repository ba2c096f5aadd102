#include "comm/socket_bytes.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <charconv>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace ftrun {
namespace {

constexpr int kEstablished = 1;  // TCP_ESTABLISHED, which is in a header that linux/tcp.h excludes

/// Reads the state of a TCP connection; nothing for any other socket.
std::optional<tcp_info> read_tcp_info(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  const bool counts =
      size >= offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received;
  if (!counts || info.tcpi_state != kEstablished) return std::nullopt;
  return info;
}

uint64_t inode_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::set<OpenSocket> list_tcp_connections() {
  std::set<OpenSocket> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (fd >= 0 && read_tcp_info(fd)) found.emplace(fd, inode_of(fd));
  }
  return found;
}

int64_t count_received_bytes(const std::set<OpenSocket>& sockets) {
  int64_t bytes = 0;
  for (const auto& [fd, inode] : sockets) {
    if (inode_of(fd) != inode) continue;
    if (const auto info = read_tcp_info(fd))
      bytes += static_cast<int64_t>(info->tcpi_bytes_received);
  }
  return bytes;
}

}  // namespace ftrun
