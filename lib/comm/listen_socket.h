#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/owned_fd.h"

namespace ftrun {

/// ListenSocket listens on one address only: c10d's own would listen on every interface.
struct ListenSocket {
  OwnedFd fd;
  int port = 0;
};

/// Listens on a port; 0 chooses a free one. Throws Error(kEnvironment) if the port is taken or the
/// address is not one of this machine's.
ListenSocket listen_on(const std::string& address, int port);
/// Connects to an address; throws std::runtime_error with the reason if that does not succeed by
/// `deadline`.
OwnedFd connect_to(const std::string& address, int port,
                   std::chrono::steady_clock::time_point deadline);
/// Returns why the host name cannot be resolved; nothing if it can.
std::optional<std::string> why_unresolved(const std::string& address);
/// The remedy if the name of rank 0 cannot be resolved.
inline constexpr const char* kMasterAddrRemedy =
    "set MASTER_ADDR to a name or address of the machine of rank 0";
/// Returns whether a host name that can be resolved leads to this machine's loopback interface.
bool is_loopback(const std::string& address);
/// Returns why no network of this machine leads to an address; nothing if one does, or if the name
/// cannot be resolved.
std::optional<std::string> why_unreachable(const std::string& address);
/// Returns the port of an inherited socket; throws Error(kEnvironment) if the socket is not bound
/// to a port.
int bound_port(int fd);
/// Returns the address of this machine's network interface that leads to `address`; "127.0.0.1" if
/// it cannot be found.
std::string local_address_towards(const std::string& address, int port);

}  // namespace ftrun
