#include "base/loopback.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/error.h"
#include "base/owned_fd.h"

namespace ftrun {

void check_loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(9);  // any port: nothing is sent
  const int error = route_error(address);
  if (error != ENETUNREACH && error != EHOSTUNREACH && error != EADDRNOTAVAIL) return;
  throw Error(ExitCode::kEnvironment,
              cat("the ranks of this machine cannot reach each other: no route to 127.0.0.1: ",
                  errno_text(error)),
              "bring the loopback interface of this network namespace up: ip link set lo up");
}

int route_error(const sockaddr_in& to) {
  const OwnedFd probe(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Connecting a datagram socket sends nothing; it only chooses the route.
  return !probe || ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0
             ? errno
             : 0;
}

}  // namespace ftrun
