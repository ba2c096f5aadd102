#pragma once

struct sockaddr_in;

namespace ftrun {

/// Error(kEnvironment) where this machine's loopback interface is down: what its processes send to
/// each other would reach nobody.
void require_loopback();

/// The errno of looking for a way to an address, 0 where there is one. Sends nothing.
int find_route(const sockaddr_in& to);

}  // namespace ftrun
