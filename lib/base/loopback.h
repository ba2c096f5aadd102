#pragma once

struct sockaddr_in;

namespace ftrun {

/// Throws Error(kEnvironment) if this machine's loopback interface is down: its processes could not
/// reach each other.
void check_loopback();

/// Returns 0 if there is a route to an address, else the errno. Sends nothing.
int route_error(const sockaddr_in& to);

}  // namespace ftrun
