#pragma once

#include "base/owned_fd.h"

namespace ftrun {

/// StoreSocket is a socket on 127.0.0.1 that already listens: ranks that connect before rank 0 is
/// ready wait in its queue instead of being refused.
struct StoreSocket {
  OwnedFd fd;
  int port = 0;
};

/// Binds a socket on 127.0.0.1 to a free port. Throws Error(kEnvironment) if that fails.
StoreSocket bind_store_socket();

}  // namespace ftrun
