#include "base/write_whole.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace ftrun {

bool write_whole(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done > 0) {
      bytes.remove_prefix(static_cast<size_t>(done));
    } else if (done < 0 && errno == EAGAIN) {
      // A terminal may report that it has room although a whole line does not fit, so each retry
      // waits a moment.
      constexpr int kMomentMs = 20;
      pollfd descriptor{fd, POLLOUT, 0};
      ::poll(&descriptor, 1, -1);
      ::poll(nullptr, 0, kMomentMs);
    } else if (done == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace ftrun
