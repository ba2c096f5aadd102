#include "cluster/store_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/error.h"
#include "base/loopback.h"

namespace ftrun {

StoreSocket bind_store_socket() {
  check_loopback();
  StoreSocket store{OwnedFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  if (!store.fd || ::bind(store.fd.get(), raw, size) != 0 || ::listen(store.fd.get(), 512) != 0 ||
      ::getsockname(store.fd.get(), raw, &size) != 0)
    throw Error(ExitCode::kEnvironment,
                cat("cannot open a local socket for the rendezvous: ", errno_text(errno)),
                "bring the loopback interface up, or raise ulimit -n");
  store.port = ntohs(address.sin_port);
  return store;
}

}  // namespace ftrun
