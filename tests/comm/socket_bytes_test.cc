#include "comm/socket_bytes.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/owned_fd.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// SocketPair holds the two connected sockets of a TCP connection over the loopback interface.
struct SocketPair {
  SocketPair() {
    const OwnedFd listener(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const place = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener.get(), place, size) == 0);
    REQUIRE(::listen(listener.get(), 1) == 0);
    REQUIRE(::getsockname(listener.get(), place, &size) == 0);
    one = OwnedFd(::socket(AF_INET, SOCK_STREAM, 0));
    REQUIRE(::connect(one.get(), place, size) == 0);
    other = OwnedFd(::accept(listener.get(), nullptr, nullptr));
    REQUIRE(other);
  }
  OwnedFd one, other;
};

void send_and_receive(const OwnedFd& from, const OwnedFd& to, size_t bytes) {
  std::vector<char> data(bytes);
  REQUIRE(::send(from.get(), data.data(), bytes, 0) == static_cast<ssize_t>(bytes));
  REQUIRE(::recv(to.get(), data.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
}

TEST_CASE("the kernel's byte counts of this process's connections are read") {
  const std::set<OpenSocket> before = list_tcp_connections();
  SocketPair pair;
  std::set<OpenSocket> opened;
  std::ranges::set_difference(list_tcp_connections(), before, std::inserter(opened, opened.end()));
  REQUIRE(opened.size() == 2);  // neither the listener nor earlier connections
  REQUIRE(count_received_bytes(opened) == 0);
  send_and_receive(pair.one, pair.other, 30'000);
  REQUIRE(count_received_bytes(opened) == 30'000);
  send_and_receive(pair.other, pair.one, 7);
  REQUIRE(count_received_bytes(opened) == 30'007);
  // A reused descriptor number is another connection.
  const int number = pair.one.get();
  pair.one.reset();
  pair.other.reset();
  SocketPair next;
  REQUIRE((next.one.get() == number || next.other.get() == number));
  send_and_receive(next.one, next.other, 500);
  REQUIRE(count_received_bytes(opened) == 0);
}

}  // namespace
}  // namespace ftrun
