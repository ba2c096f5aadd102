#include "cluster/lossy_output.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <string>

#include "base/owned_fd.h"
#include "cluster/rank_process.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace std::chrono_literals;

constexpr const char* kLine = "a line that nobody reads\n";

/// Returns a terminal, and the end from which a test reads what the terminal shows.
Pipe make_terminal() {
  int shown = -1, terminal = -1;
  REQUIRE(::openpty(&shown, &terminal, nullptr, nullptr, nullptr) == 0);
  return {OwnedFd(shown), OwnedFd(terminal)};
}

/// Reads what is available now.
std::string read_from(const OwnedFd& reader) {
  ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  std::string text, piece(4096, 0);
  for (ssize_t got = 0; (got = ::read(reader.get(), piece.data(), piece.size())) > 0;)
    text.append(piece, 0, static_cast<size_t>(got));
  return text;
}

LossyOutputOptions options_for(const Pipe& ends) {
  return {.descriptors = {ends.writer.get(), ends.writer.get()}, .write_timeout = 50ms};
}

TEST_CASE(
    "text that a blocked output cannot take is dropped, and reported once there is room again") {
  for (const bool is_terminal : {false, true}) {
    const Pipe ends = is_terminal ? make_terminal() : make_pipe();
    LossyOutput output(options_for(ends));
    const std::string much(5000, 'x');
    for (int i = 0; i < 100; ++i)
      output.write(OutputStream::kOut, much + "\n");  // more than a pipe or a terminal holds
    for (int i = 0; i < 1000; ++i) output.write(OutputStream::kOut, kLine);  // none of these waits
    CHECK(output.dropped_lines() > 1000);
    std::string read = read_from(ends.reader);
    CHECK(read.starts_with(much.substr(0, 1000)));
    CHECK(read.find(kLine) == read.npos);
    output.write(OutputStream::kOut, "read again\n");
    read = read_from(ends.reader);
    std::erase(read, '\r');  // the terminal's carriage returns
    CAPTURE(is_terminal, read);
    const size_t notice_at = read.find("\nnotice: ");
    REQUIRE(notice_at != read.npos);
    CHECK(output.dropped_lines() == 0);
    // The number of dropped lines: all except those that the output holds.
    const int left_out = std::stoi(read.substr(notice_at + 9));
    CHECK((left_out > 1000 && left_out < 1100));
    CHECK(read.ends_with(
        " lines were dropped because the output was blocked; see the ranks' logs\nread again\n"));
  }
}

TEST_CASE("a slow reader gets everything, even when the ranks have to end") {
  const Pipe ends = make_pipe();
  ::fcntl(ends.writer.get(), F_SETPIPE_SZ, 4096);
  std::string read, wanted;
  LossyOutputOptions options = options_for(ends);
  options.write_timeout_at_end = 10s;
  options.is_ending = [&] {
    read += read_from(ends.reader);
    return true;
  };
  LossyOutput output(options);
  for (int i = 0; i < 20; ++i) {
    const std::string line(1000, static_cast<char>('a' + i));
    output.write(OutputStream::kErr, line + "\n");
    wanted += line + "\n";
  }
  read += read_from(ends.reader);
  CHECK(read == wanted);
}

}  // namespace
}  // namespace ftrun
