#include "standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>

#include "base/error.h"

namespace ftrun {
namespace {

bool reader_has_left() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

void open_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // open() returns the lowest free descriptor, which is `fd`. Programs that this process starts
    // inherit it.
    if (::open("/dev/null", O_RDWR) != fd)
      throw Error(
          ExitCode::kEnvironment,
          cat("descriptor ", fd,
              " is closed, and /dev/null cannot be opened in its place: ", errno_text(errno)),
          "start ftrun with standard input, output and error open");
  }
}

std::string output_problem() {
  errno = 0;
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if ((flushed && std::cout && std::ferror(stdout) == 0) || reader_has_left()) return "";
  // If an earlier write failed, its errno is no longer known, and the reason is left out.
  return cat("not all of the output could be written to standard output",
             reason == 0 ? "" : cat(": ", errno_text(reason)));
}

}  // namespace ftrun
