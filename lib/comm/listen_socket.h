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

/// Listens on a port; 0 takes any. Error(kEnvironment) when the port is taken or the address is not
/// ours.
ListenSocket listen_on(const std::string& address, int port);
/// Connects to an address; throws std::runtime_error with the reason when that fails until
/// `deadline`.
OwnedFd connect_to(const std::string& address, int port,
                   std::chrono::steady_clock::time_point deadline);
/// Returns why the name cannot be resolved; nothing when it can.
std::optional<std::string> unknown_host(const std::string& address);
/// The remedy if the name of rank 0 cannot be resolved.
inline constexpr const char* kNameRankZero =
    "set MASTER_ADDR to a name or address of the machine of rank 0";
/// Returns whether a name that can be resolved is this machine's own, over the loopback interface.
bool is_loopback(const std::string& address);
/// Returns why no network of this machine leads to an address; nothing where one does, or the name
/// cannot be resolved.
std::optional<std::string> missing_route(const std::string& address);
/// Returns the port of a socket that was handed to us; Error(kEnvironment) when it is not bound to
/// one.
int bound_port(int fd);
/// Returns this machine's address as seen on the way to `address`; "127.0.0.1" when that cannot be
/// found.
std::string local_address_towards(const std::string& address, int port);

}  // namespace ftrun
