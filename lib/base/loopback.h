#pragma once

struct sockaddr_in;

namespace ftrun {

/// Throws Error(kEnvironment) where this machine's loopback interface is down: its processes could
/// not reach each other.
void require_loopback();

/// Looks for a route to an address; returns 0 where there is one, else the errno. Sends nothing.
int find_route(const sockaddr_in& to);

}  // namespace ftrun
