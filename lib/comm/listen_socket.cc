#include "comm/listen_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "base/error.h"
#include "base/loopback.h"

namespace ftrun {
namespace {

using Resolved = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Resolved resolve_address(const std::string& address, int port, int type) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = type;
  addrinfo* addresses = nullptr;
  const int error =
      ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &addresses);
  if (error != 0)
    throw Error(
        ExitCode::kEnvironment,
        cat("cannot resolve the rendezvous address \"", address, "\": ", ::gai_strerror(error)),
        kMasterAddrRemedy);
  return {addresses, ::freeaddrinfo};
}

[[noreturn]] void throw_bind_error(const std::string& address, int port, int reason) {
  if (reason == EADDRINUSE)
    throw Error(ExitCode::kEnvironment,
                cat("port ", port, " on ", address, " is in use by another process"),
                "choose another MASTER_PORT, or end the other job");
  if (reason == EADDRNOTAVAIL)
    throw Error(ExitCode::kEnvironment,
                cat("rank 0 cannot serve the rendezvous on ", address,
                    ": this machine does not have that address"),
                "set MASTER_ADDR to an address of the machine of rank 0");
  throw Error(
      ExitCode::kEnvironment,
      cat("rank 0 cannot serve the rendezvous on ", address, ":", port, ": ", errno_text(reason)),
      "choose another MASTER_PORT (a port below 1024 needs root), or leave it unset under "
      "ftrun's supervisor");
}

/// Returns whether the socket connected to itself: if nobody listens yet, the kernel may choose the
/// target port as the socket's own port. Such a socket is then closed at once, without TIME_WAIT in
/// the kernel, because it keeps the port from the listener.
bool is_connected_to_itself(int fd) {
  sockaddr_in local{}, remote{};
  socklen_t local_size = sizeof local, remote_size = sizeof remote;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_size) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &remote_size) != 0 ||
      local.sin_port != remote.sin_port || local.sin_addr.s_addr != remote.sin_addr.s_addr)
    return false;
  const linger none{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  return true;
}

/// Returns the first address of a host name; nothing if it cannot be resolved.
std::optional<sockaddr_in> first_address(const std::string& address) {
  try {
    const Resolved resolved = resolve_address(address, 9, SOCK_DGRAM);  // any port
    sockaddr_in first{};
    std::memcpy(&first, resolved->ai_addr, sizeof first);
    return first;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

bool is_loopback(const std::string& address) {
  const auto first = first_address(address);
  return first && (ntohl(first->sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
}

std::optional<std::string> why_unreachable(const std::string& address) {
  const auto first = first_address(address);
  const int error = first ? route_error(*first) : 0;
  if (error != ENETUNREACH && error != EHOSTUNREACH) return std::nullopt;
  return cat("no network of this machine leads to the rendezvous address \"", address,
             "\": ", errno_text(error));
}

std::optional<std::string> why_unresolved(const std::string& address) {
  try {
    resolve_address(address, 0, SOCK_STREAM);
    return std::nullopt;
  } catch (const Error& error) {
    return error.message();
  }
}

int bound_port(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      address.sin_family != AF_INET)
    throw Error(ExitCode::kEnvironment,
                cat("descriptor ", fd, " (FTRUN_STORE_FD) is not a bound socket"));
  return ntohs(address.sin_port);
}

ListenSocket listen_on(const std::string& address, int port) {
  const Resolved resolved = resolve_address(address, port, SOCK_STREAM);
  ListenSocket result{OwnedFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  const int yes = 1;
  if (result.fd)  // a port whose last user has just ended may be bound again
    ::setsockopt(result.fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (!result.fd || ::bind(result.fd.get(), resolved->ai_addr, resolved->ai_addrlen) != 0 ||
      ::listen(result.fd.get(), 512) != 0)
    throw_bind_error(address, port, errno);
  result.port = bound_port(result.fd.get());
  return result;
}

OwnedFd connect_to(const std::string& address, int port,
                   std::chrono::steady_clock::time_point deadline) {
  const Resolved resolved = resolve_address(address, port, SOCK_STREAM);
  OwnedFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int error = fd ? 0 : errno;
  if (fd && ::connect(fd.get(), resolved->ai_addr, resolved->ai_addrlen) != 0) error = errno;
  if (error == EINPROGRESS) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd descriptor{fd.get(), POLLOUT, 0};
    socklen_t size = sizeof error;
    error = ETIMEDOUT;
    if (::poll(&descriptor, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) > 0)
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0 && is_connected_to_itself(fd.get())) error = ECONNREFUSED;
  if (error != 0) throw std::runtime_error(errno_text(error));
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return fd;
}

std::string local_address_towards(const std::string& address, int port) {
  const Resolved resolved = resolve_address(address, port, SOCK_DGRAM);
  const OwnedFd probe(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in local{};
  socklen_t size = sizeof local;
  // Connecting a datagram socket sends nothing; it only chooses the route.
  if (!probe || ::connect(probe.get(), resolved->ai_addr, resolved->ai_addrlen) != 0 ||
      ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0)
    return "127.0.0.1";
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &local.sin_addr, text, sizeof text);
  return text;
}

}  // namespace ftrun
