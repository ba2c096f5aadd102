#include "cluster/lossy_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <string>
#include <utility>

#include "base/error.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kMoment{100};

bool has_room(int fd, std::chrono::milliseconds wait) {
  pollfd descriptor{fd, POLLOUT, 0};
  return ::poll(&descriptor, 1, static_cast<int>(wait.count())) != 0;
}

/// Opens a terminal again, non-blocking. A write to a terminal that has room for one byte would
/// block until the whole line is written. Setting O_NONBLOCK on the inherited descriptor would
/// affect every process that shares it.
OwnedFd reopen_terminal(int fd) {
  if (::isatty(fd) != 1) return {};
  const std::string path = cat("/proc/self/fd/", fd);
  return OwnedFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

LossyOutput::LossyOutput(LossyOutputOptions options) : options_(std::move(options)) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    streams_[i].terminal = reopen_terminal(options_.descriptors[i]);
    streams_[i].fd = streams_[i].terminal ? streams_[i].terminal.get() : options_.descriptors[i];
  }
}

void LossyOutput::write(OutputStream stream, std::string_view text) {
  Stream& to = streams_[static_cast<size_t>(stream)];
  const bool is_out = stream == OutputStream::kOut;
  const auto count_dropped = [&] {
    to.dropped_lines += std::max<int64_t>(1, std::count(text.begin(), text.end(), '\n'));
  };
  if (to.is_blocked && !has_room(to.fd, {})) return count_dropped();
  if (std::exchange(to.is_blocked, false)) {
    const std::string notice =
        cat("\nnotice: ", to.dropped_lines, to.dropped_lines == 1 ? " line was" : " lines were",
            " dropped because the output was blocked; see the ranks' logs\n");
    std::string_view remaining = notice;
    if (!write_all(to, remaining, is_out)) return count_dropped();
    to.dropped_lines = 0;
  }
  if (!write_all(to, text, is_out)) count_dropped();
}

/// Writes the text. Returns false if the stream is blocked; `text` is then what remains.
bool LossyOutput::write_all(Stream& stream, std::string_view& text, bool is_out) {
  constexpr size_t kAtOnce = 4096;  // PIPE_BUF: a writable pipe takes it at once
  while (!text.empty()) {
    if (!wait_until_writable(stream)) {
      stream.is_blocked = true;
      return false;
    }
    const ssize_t done = ::write(stream.fd, text.data(), std::min(text.size(), kAtOnce));
    if (done < 0 && errno == EAGAIN) ::poll(nullptr, 0, static_cast<int>(kMoment.count()));
    if (done < 0 && errno != EINTR && errno != EAGAIN) {
      if (is_out) std::cout.setstate(std::ios::badbit);
      return true;  // waiting would not help
    }
    if (done > 0) text.remove_prefix(static_cast<size_t>(done));
  }
  return true;
}

bool LossyOutput::wait_until_writable(const Stream& stream) {
  const auto begin = Clock::now();
  for (;;) {
    if (has_room(stream.fd, kMoment)) return true;
    const auto write_timeout =
        options_.is_ending() ? options_.write_timeout_at_end : options_.write_timeout;
    if (Clock::now() - begin >= write_timeout) return false;
  }
}

}  // namespace ftrun
