#include "comm/store_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hmac.h"
#include "base/log.h"
#include "comm/store_protocol.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

/// The pause before the next accept after descriptors or memory ran out.
constexpr std::chrono::milliseconds kAcceptRetryDelay{100};
constexpr size_t kReadBytes = 64 << 10;
/// The capacity of the receive buffer that a connection keeps: enough for heartbeats.
constexpr size_t kKeptBytes = 16 << 10;
/// The maximum number of connections that are served before epoll is called again.
constexpr size_t kEvents = 256;

/// Longer values are sent from where they are stored, so that a value which all ranks request at
/// the same time is in memory once.
constexpr size_t kSharedBytes = 4096;

/// ByteAccount adds a number of bytes to a sum, and subtracts it when it is destroyed.
class ByteAccount {
 public:
  explicit ByteAccount(int64_t& sum, size_t bytes = 0) : sum_(sum) { set(bytes); }
  ~ByteAccount() { set(0); }
  ByteAccount(const ByteAccount&) = delete;
  ByteAccount& operator=(const ByteAccount&) = delete;
  void set(size_t bytes) {
    sum_ += static_cast<int64_t>(bytes) - bytes_;
    bytes_ = static_cast<int64_t>(bytes);
  }

 private:
  int64_t& sum_;
  int64_t bytes_ = 0;
};

using Value = std::shared_ptr<const std::string>;

/// Makes a value that any number of receivers share. Its bytes and its key's are counted once,
/// until the last receiver has received it.
Value make_value(std::string_view key, std::string_view text, int64_t& sum) {
  struct StoredValue {
    StoredValue(std::string_view from, int64_t& of, size_t bytes)
        : text(from), account(of, bytes) {}
    std::string text;
    ByteAccount account;
  };
  const auto stored = std::make_shared<StoredValue>(text, sum, key.size() + text.size());
  return {stored, &stored->text};
}

struct StoreRequest {
  StoreOperation operation{};
  std::optional<Clock::time_point> deadline;
  std::vector<std::string> fields;
  /// Bytes of all fields.
  size_t bytes = 0;
  /// The number of keys that were there at the last check.
  size_t found_keys = 0;

  const std::string& first_missing_key() const { return fields[found_keys]; }
};

/// SendBuffer holds the bytes that are still to be sent to a peer.
struct SendBuffer {
  std::string bytes;
  /// The value that follows the bytes.
  Value value;
  size_t sent = 0;

  bool empty() const { return sent == bytes.size() + (value ? value->size() : 0); }
  std::string_view next() const {
    const std::string_view head = bytes,
                           tail = value ? std::string_view(*value) : std::string_view();
    return sent < head.size() ? head.substr(sent) : tail.substr(sent - head.size());
  }
};

struct Peer {
  Peer(OwnedFd connection, int64_t& sum) : fd(std::move(connection)), account(sum) {}

  OwnedFd fd;
  std::list<Peer>::iterator position;
  bool is_member = false;
  /// The events for which epoll watches the peer.
  uint32_t events = 0;
  Clock::time_point connected_at = Clock::now();
  std::string challenge;
  std::string in;
  SendBuffer out;
  /// A request whose keys are not there yet.
  std::optional<StoreRequest> waiting_request;
  /// Bytes received from the peer and to be sent to it, without values that are sent from the
  /// store.
  ByteAccount account;
};

SendBuffer make_answer(StoreAnswer kind, const std::vector<std::string_view>& fields = {}) {
  std::string body(1, static_cast<char>(kind));
  for (const std::string_view field : fields) append_field(body, field);
  std::string bytes;
  append_number(bytes, static_cast<uint32_t>(body.size()));
  return {.bytes = bytes + body};
}

/// Answers with the value, without copying it.
SendBuffer make_value_answer(const Value& field) {
  SendBuffer out;
  append_number(out.bytes, static_cast<uint32_t>(1 + sizeof(uint32_t) + field->size()));
  out.bytes += static_cast<char>(StoreAnswer::kDone);
  append_number(out.bytes, static_cast<uint32_t>(field->size()));
  out.value = field;
  return out;
}

/// Returns whether a request has as many fields as its operation needs.
bool has_valid_fields(const StoreRequest& request) {
  const size_t fields = request.fields.size();
  switch (request.operation) {
    case StoreOperation::kSet:
      return fields % 2 == 0;
    case StoreOperation::kAdd:
    case StoreOperation::kAppend:
      return fields == 2;
    case StoreOperation::kCompareSet:
      return fields == 3;
    case StoreOperation::kDelete:
      return fields == 1;
    case StoreOperation::kGet:
    case StoreOperation::kWait:
    case StoreOperation::kCheck:
    case StoreOperation::kCount:
      return true;
  }
  return false;
}

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

struct StoreServer::Loop {
  Loop(StoreServer& server, OwnedFd listening, std::string secret, const StoreMember& serving,
       Limits given)
      : owner(server),
        listener(std::move(listening)),
        token(std::move(secret)),
        own_member(encode_member(serving)),
        limits(given) {
    instances.emplace(serving.rank, serving.instance);
  }

  void serve();
  bool watch(int operation, int fd, uint32_t events, void* what) const;
  bool handle_events();
  void serve_peer(Peer& peer, uint32_t events);
  int next_timeout() const;
  void accept_all();
  void accept_again();
  void greet(OwnedFd connection);
  void drop(Peer& peer);
  bool read_from(Peer& peer);
  bool write_to(Peer& peer);
  bool handle_input(Peer& peer);
  bool admit(Peer& peer);
  StoreAdmission admit_member(std::string_view member);
  std::optional<StoreRequest> parse(std::string_view body) const;
  void start_request(Peer& peer, StoreRequest request);
  StoreRequest stop_waiting(Peer& peer);
  bool has_all_keys(StoreRequest& request) const;
  SendBuffer run_request(const StoreRequest& request);
  SendBuffer values_of(const std::vector<std::string>& keys) const;
  bool send_next(Peer& peer);
  void update_peer(Peer& peer);
  void record_stored();
  bool store(const std::string& key, std::string_view value);
  SendBuffer set(const std::vector<std::string>& fields);
  SendBuffer check(const std::vector<std::string>& keys) const;
  SendBuffer add(const std::string& key, const std::string& number);
  SendBuffer append(const std::string& key, const std::string& more);
  SendBuffer compare_set(const std::string& key, const std::string& expected,
                         const std::string& replacement);
  SendBuffer erase(const std::string& key);
  void check_waiting();
  void check_waiting(const std::string& key);
  void expire_deadlines();

  StoreServer& owner;
  /// The epoll descriptor: its cost depends only on the number of connections with events.
  OwnedFd epoll_fd{::epoll_create1(EPOLL_CLOEXEC)};
  OwnedFd listener;
  const std::string token;
  const std::string own_member;
  const Limits limits;
  /// Bytes that are stored, received in requests, or waiting to be sent.
  int64_t held_bytes = 0;
  /// The peers that have not proved themselves, in the order in which they came, and those that
  /// have.
  std::list<Peer> unauthenticated, members;
  /// The process of each rank, by its instance. The serving rank is entered at the start, before
  /// another process can claim to be it.
  std::unordered_map<uint32_t, std::string> instances;
  std::unordered_map<std::string, Value> values;
  size_t stored_bytes = 0;
  /// The waiting peers, by the first key that was missing at the last check; and by their
  /// deadline.
  std::unordered_map<std::string, std::unordered_set<Peer*>> waiting_peers;
  std::set<std::pair<Clock::time_point, Peer*>> deadlines;
  /// Keys that have arrived and for which a peer waits.
  std::vector<std::string> arrived;
  std::optional<Clock::time_point> accept_after;
  bool reported_shortage = false;
};

StoreServer::StoreServer(OwnedFd listening, std::string token, const StoreMember& own_member,
                         Limits limits)
    : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      loop_(std::make_unique<Loop>(*this, std::move(listening), std::move(token), own_member,
                                   limits)) {
  // An inherited listener may be in blocking mode.
  ::fcntl(loop_->listener.get(), F_SETFL, ::fcntl(loop_->listener.get(), F_GETFL) | O_NONBLOCK);
  ::fcntl(loop_->listener.get(), F_SETFD, FD_CLOEXEC);
  const bool ready = wake_ && loop_->epoll_fd &&
                     loop_->watch(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, &wake_) &&
                     loop_->watch(EPOLL_CTL_ADD, loop_->listener.get(), EPOLLIN, &loop_->listener);
  if (!ready)
    throw Error(ExitCode::kEnvironment,
                cat("rank 0 cannot accept the other ranks' connections: ", errno_text(errno)),
                "raise ulimit -n on the machine of rank 0");
  thread_ = std::thread([this] { loop_->serve(); });
}

StoreServer::~StoreServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t done = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

/// Watches a descriptor; `what` is a Peer, or the address of one of the server's own descriptors.
bool StoreServer::Loop::watch(int operation, int fd, uint32_t events, void* what) const {
  epoll_event event{.events = events, .data = {.ptr = what}};
  return ::epoll_ctl(epoll_fd.get(), operation, fd, &event) == 0;
}

void StoreServer::Loop::serve() {
  while (handle_events()) {
    expire_deadlines();
    check_waiting();
    if (accept_after && Clock::now() >= *accept_after) accept_again();
  }
}

/// Handles the events that epoll reports; returns false if the server is to end.
bool StoreServer::Loop::handle_events() {
  std::array<epoll_event, kEvents> events;
  const int count =
      ::epoll_wait(epoll_fd.get(), events.data(), static_cast<int>(events.size()), next_timeout());
  bool should_stop = false, has_connection = false;
  for (int i = 0; i < count; ++i) {
    const auto& [which, data] = events[static_cast<size_t>(i)];
    if (data.ptr == &owner.wake_)
      should_stop = true;
    else if (data.ptr == &listener)
      // Connections are accepted after these events, because a new one may replace a peer that has
      // one.
      has_connection = true;
    else
      serve_peer(*static_cast<Peer*>(data.ptr), which);
  }
  if (has_connection && !should_stop) accept_all();
  return !should_stop;
}

void StoreServer::Loop::serve_peer(Peer& peer, uint32_t events) {
  bool keeps_open = (events & EPOLLERR) == 0;
  if (keeps_open && (events & EPOLLOUT) != 0) keeps_open = write_to(peer);
  if (keeps_open && (events & (EPOLLIN | EPOLLHUP | EPOLLRDHUP)) != 0) keeps_open = read_from(peer);
  if (keeps_open)
    update_peer(peer);
  else
    drop(peer);
}

void StoreServer::Loop::drop(Peer& peer) {
  if (peer.waiting_request) stop_waiting(peer);
  // The descriptor is removed from epoll first, because closing does not remove a connection of
  // which a child process that is being started still has a copy.
  watch(EPOLL_CTL_DEL, peer.fd.get(), 0, &peer);
  if (!peer.is_member) ++owner.refused_;
  (peer.is_member ? members : unauthenticated).erase(peer.position);
}

int StoreServer::Loop::next_timeout() const {
  std::optional<Clock::time_point> earliest = accept_after;
  const auto consider = [&](Clock::time_point when) {
    earliest = std::min(earliest.value_or(when), when);
  };
  if (!unauthenticated.empty())
    consider(unauthenticated.front().connected_at + std::chrono::milliseconds(limits.handshake_ms));
  if (!deadlines.empty()) consider(deadlines.begin()->first);
  if (!earliest) return -1;
  const auto remaining = std::chrono::ceil<std::chrono::milliseconds>(*earliest - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(remaining.count(), 0, 60'000));
}

void StoreServer::Loop::accept_all() {
  // At most 64 connections are accepted at a time, so that the accepted ones are served in between.
  for (int portion = 0; portion < 64; ++portion) {
    OwnedFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      greet(std::move(fd));
      continue;
    }
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    if (!std::exchange(reported_shortage, true))
      log_warning(
          cat("rank 0, which serves the job's store, cannot take another connection for now: ",
              errno_text(errno), errno == EMFILE ? "; raise ulimit -n on its machine" : ""));
    accept_after = Clock::now() + kAcceptRetryDelay;
    watch(EPOLL_CTL_MOD, listener.get(), 0, &listener);
    return;
  }
}

void StoreServer::Loop::accept_again() {
  accept_after.reset();
  watch(EPOLL_CTL_MOD, listener.get(), EPOLLIN, &listener);
}

void StoreServer::Loop::greet(OwnedFd connection) {
  const int yes = 1;
  ::setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  if (static_cast<int>(unauthenticated.size()) >= limits.max_unauthenticated)
    drop(unauthenticated.front());
  Peer& peer = unauthenticated.emplace_back(std::move(connection), held_bytes);
  peer.position = std::prev(unauthenticated.end());
  peer.challenge = random_bytes(kChallengeBytes);
  peer.out.bytes = cat(kStoreGreeting, peer.challenge);
  if (watch(EPOLL_CTL_ADD, peer.fd.get(), 0, &peer) && write_to(peer))
    update_peer(peer);
  else
    drop(peer);
}

/// Receives bytes from a peer; returns false if the connection is to be closed.
bool StoreServer::Loop::read_from(Peer& peer) {
  if (peer.waiting_request) return false;  // it disconnected, or sent a request before its answer
  const size_t max_bytes = peer.is_member ? kReadBytes : kHelloBytes - peer.in.size();
  char buffer[kReadBytes];
  const ssize_t received = ::recv(peer.fd.get(), buffer, max_bytes, 0);
  if (received < 0) return errno == EAGAIN || errno == EINTR;
  if (received == 0) return false;
  peer.in.append(buffer, static_cast<size_t>(received));
  return handle_input(peer);
}

/// Sends as much as the connection accepts now; returns false when it is lost.
bool StoreServer::Loop::send_next(Peer& peer) {
  while (!peer.out.empty()) {
    const std::string_view next = peer.out.next();
    const ssize_t done = ::send(peer.fd.get(), next.data(), next.size(), MSG_NOSIGNAL);
    if (done < 0) return errno == EAGAIN || errno == EINTR;
    peer.out.sent += static_cast<size_t>(done);
    if (static_cast<size_t>(done) < next.size()) return true;
  }
  peer.out = {};
  return true;
}

bool StoreServer::Loop::write_to(Peer& peer) {
  return send_next(peer) && (!peer.out.empty() || handle_input(peer));
}

/// Updates the events that epoll watches for the peer, and the memory that is counted for it.
void StoreServer::Loop::update_peer(Peer& peer) {
  // A peer that waits, or still receives an answer, sends no request.
  const bool listens = !peer.waiting_request && peer.out.empty();
  uint32_t events = listens ? EPOLLIN : EPOLLRDHUP;
  if (!peer.out.empty()) events |= EPOLLOUT;
  if (events != peer.events) watch(EPOLL_CTL_MOD, peer.fd.get(), events, &peer);
  peer.events = events;
  peer.account.set(peer.in.capacity() + peer.out.bytes.size() +
                   (peer.waiting_request ? peer.waiting_request->bytes : 0));
  owner.peak_bytes_ = std::max(owner.peak_bytes_.load(), held_bytes);
}

void StoreServer::Loop::record_stored() {
  owner.keys_ = static_cast<int64_t>(values.size());
  owner.stored_bytes_ = static_cast<int64_t>(stored_bytes);
  owner.peak_bytes_ = std::max(owner.peak_bytes_.load(), held_bytes);
}

/// Handles requests one at a time: the next is read when the answer to the last has been sent.
bool StoreServer::Loop::handle_input(Peer& peer) {
  if (!peer.is_member) return peer.in.size() < kHelloBytes || admit(peer);
  while (!peer.waiting_request && peer.out.empty() && peer.in.size() >= sizeof(uint32_t)) {
    const auto size = read_number<uint32_t>(peer.in, 0);
    if (size > kMaxRequestBytes) return false;
    if (peer.in.size() < sizeof size + size) {
      peer.in.reserve(sizeof size + size);
      return true;
    }
    auto request = parse(std::string_view(peer.in).substr(sizeof size, size));
    peer.in.erase(0, sizeof size + size);
    if (!request) return false;
    start_request(peer, std::move(*request));
    if (!send_next(peer)) return false;
  }
  // A large buffer is freed, because otherwise each rank that once sent a large value would keep
  // its memory until the end.
  if (peer.in.empty() && peer.in.capacity() > kKeptBytes) std::string().swap(peer.in);
  return true;
}

bool StoreServer::Loop::admit(Peer& peer) {
  const std::string challenge = peer.in.substr(0, kChallengeBytes),
                    member = peer.in.substr(kChallengeBytes, kMemberBytes);
  const std::string expected = client_proof(token, peer.challenge, challenge, member);
  const std::string_view proof = std::string_view(peer.in).substr(kChallengeBytes + kMemberBytes);
  const auto refuse = [&](const std::string& reply) {
    [[maybe_unused]] const ssize_t written =
        ::send(peer.fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
    return false;
  };
  if (!equal_in_constant_time(bytes_of(expected), bytes_of(proof)))
    return refuse(std::string(kWelcomeBytes, '\0'));
  if (static_cast<int>(members.size()) >= limits.max_connections) return false;
  const StoreAdmission admission = admit_member(member);
  const std::string reply =
      cat(static_cast<char>(admission), own_member,
          server_proof(token, peer.challenge, challenge, admission, own_member));
  if (admission != StoreAdmission::kAdmitted) return refuse(reply);
  peer.is_member = true;
  members.splice(members.end(), unauthenticated, peer.position);
  ++owner.admitted_;
  peer.in.clear();
  peer.out.bytes += reply;
  return write_to(peer);
}

/// Admits or refuses a client that knows the token.
StoreAdmission StoreServer::Loop::admit_member(std::string_view member) {
  const StoreAdmission admission = compare_members(own_member, member);
  if (admission != StoreAdmission::kAdmitted) return admission;
  const StoreMember joining = decode_member(member);
  const auto [known, is_new] = instances.emplace(joining.rank, joining.instance);
  return is_new || known->second == joining.instance ? admission : StoreAdmission::kSecondProcess;
}

std::optional<StoreRequest> StoreServer::Loop::parse(std::string_view body) const {
  constexpr size_t kHead = 1 + sizeof(uint64_t);
  if (body.size() < kHead) return std::nullopt;
  StoreRequest request{.operation = static_cast<StoreOperation>(body[0])};
  const auto wait = read_number<uint64_t>(body, 1);
  if (wait < uint64_t{1} << 40) request.deadline = Clock::now() + std::chrono::milliseconds(wait);
  const auto fields = parse_fields(body.substr(kHead));
  if (!fields) return std::nullopt;
  request.fields.assign(fields->begin(), fields->end());
  request.bytes = body.size();
  return request;
}

void StoreServer::Loop::start_request(Peer& peer, StoreRequest request) {
  const bool waits =
      request.operation == StoreOperation::kGet || request.operation == StoreOperation::kWait;
  if (waits && !has_all_keys(request)) {
    if (request.deadline) deadlines.emplace(*request.deadline, &peer);
    waiting_peers[request.first_missing_key()].insert(&peer);
    peer.waiting_request = std::move(request);
    return;
  }
  peer.out = run_request(request);
}

/// Ends a peer's wait, and returns the request that it waited for.
StoreRequest StoreServer::Loop::stop_waiting(Peer& peer) {
  StoreRequest request = std::move(*peer.waiting_request);
  peer.waiting_request.reset();
  if (request.deadline) deadlines.erase({*request.deadline, &peer});
  const auto others = waiting_peers.find(request.first_missing_key());
  if (others != waiting_peers.end() && others->second.erase(&peer) == 1 && others->second.empty())
    waiting_peers.erase(others);
  return request;
}

/// Returns whether all keys of a request are there. Continues where the last check ended, so that a
/// request for many keys is not checked from the start at each arrival. When the end is reached,
/// all keys are checked again, because some may have been deleted meanwhile.
bool StoreServer::Loop::has_all_keys(StoreRequest& request) const {
  const std::vector<std::string>& keys = request.fields;
  const auto first_missing = [&](size_t from) {
    while (from < keys.size() && values.contains(keys[from])) ++from;
    return from;
  };
  request.found_keys = first_missing(request.found_keys);
  if (request.found_keys == keys.size()) request.found_keys = first_missing(0);
  return request.found_keys == keys.size();
}

SendBuffer StoreServer::Loop::values_of(const std::vector<std::string>& keys) const {
  if (keys.size() == 1 && values.at(keys[0])->size() >= kSharedBytes)
    return make_value_answer(values.at(keys[0]));
  std::vector<std::string_view> found;
  for (const std::string& key : keys) found.push_back(*values.at(key));
  return make_answer(StoreAnswer::kDone, found);
}

/// Stores a value; returns false if the store has no room for it.
bool StoreServer::Loop::store(const std::string& key, std::string_view value) {
  const auto entry = values.find(key);
  const size_t before = entry == values.end() ? 0 : key.size() + entry->second->size();
  const size_t after = stored_bytes - before + key.size() + value.size();
  if (key.size() > kMaxKeyBytes || after > kMaxStoredBytes) return false;
  stored_bytes = after;
  values[key] = make_value(key, value, held_bytes);
  if (waiting_peers.contains(key)) arrived.push_back(key);
  record_stored();
  return true;
}

SendBuffer StoreServer::Loop::set(const std::vector<std::string>& fields) {
  bool fits = true;
  for (size_t i = 0; i < fields.size(); i += 2) fits = store(fields[i], fields[i + 1]) && fits;
  return make_answer(fits ? StoreAnswer::kDone : StoreAnswer::kRefused);
}

SendBuffer StoreServer::Loop::check(const std::vector<std::string>& keys) const {
  const bool all_there =
      std::ranges::all_of(keys, [&](const std::string& key) { return values.contains(key); });
  return make_answer(all_there ? StoreAnswer::kDone : StoreAnswer::kNo);
}

/// Adds to a number, which is kept as its decimal text, as c10d's stores do.
SendBuffer StoreServer::Loop::add(const std::string& key, const std::string& number) {
  int64_t sum = 0, addend = 0;
  const auto read = [](std::string_view text, int64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
  };
  const auto entry = values.find(key);
  if (!read(number, addend) || (entry != values.end() && !read(*entry->second, sum)) ||
      __builtin_add_overflow(sum, addend, &sum) || !store(key, std::to_string(sum)))
    return make_answer(StoreAnswer::kRefused);
  return make_answer(StoreAnswer::kDone, {*values[key]});
}

SendBuffer StoreServer::Loop::append(const std::string& key, const std::string& more) {
  const bool fits = store(key, values.contains(key) ? *values[key] + more : more);
  return make_answer(fits ? StoreAnswer::kDone : StoreAnswer::kRefused);
}

/// Replaces a value if it is the expected one; an expected "" also means that the key is not there.
SendBuffer StoreServer::Loop::compare_set(const std::string& key, const std::string& expected,
                                          const std::string& replacement) {
  const auto entry = values.find(key);
  if (entry == values.end() && !expected.empty())
    return make_answer(StoreAnswer::kDone, {expected});
  if (entry != values.end() && *entry->second != expected)
    return make_answer(StoreAnswer::kDone, {*entry->second});
  if (!store(key, replacement)) return make_answer(StoreAnswer::kRefused);
  return make_answer(StoreAnswer::kDone, {replacement});
}

SendBuffer StoreServer::Loop::erase(const std::string& key) {
  const auto entry = values.find(key);
  if (entry == values.end()) return make_answer(StoreAnswer::kNo);
  stored_bytes -= entry->first.size() + entry->second->size();
  values.erase(entry);
  record_stored();
  return make_answer(StoreAnswer::kDone);
}

SendBuffer StoreServer::Loop::run_request(const StoreRequest& request) {
  ++owner.requests_;
  if (!has_valid_fields(request)) return make_answer(StoreAnswer::kRefused);
  const std::vector<std::string>& fields = request.fields;
  switch (request.operation) {
    case StoreOperation::kSet:
      return set(fields);
    case StoreOperation::kGet:
      return values_of(fields);
    case StoreOperation::kWait:
      return make_answer(StoreAnswer::kDone);
    case StoreOperation::kCheck:
      return check(fields);
    case StoreOperation::kAdd:
      return add(fields[0], fields[1]);
    case StoreOperation::kAppend:
      return append(fields[0], fields[1]);
    case StoreOperation::kCompareSet:
      return compare_set(fields[0], fields[1], fields[2]);
    case StoreOperation::kDelete:
      return erase(fields[0]);
    case StoreOperation::kCount:
      return make_answer(StoreAnswer::kDone, {std::to_string(values.size())});
  }
  return make_answer(StoreAnswer::kRefused);
}

/// Resumes the requests that wait for the keys that have arrived. An arrived key costs time only
/// for the requests that wait for it, regardless of the number of other waiting requests.
void StoreServer::Loop::check_waiting() {
  for (const std::string& key : std::exchange(arrived, {})) check_waiting(key);
}

void StoreServer::Loop::check_waiting(const std::string& key) {
  const auto found = waiting_peers.extract(key);
  if (found.empty()) return;
  for (Peer* peer : found.mapped()) {
    start_request(*peer, stop_waiting(*peer));  // it may have to wait for its next missing key
    update_peer(*peer);
  }
}

void StoreServer::Loop::expire_deadlines() {
  const auto now = Clock::now();
  while (!unauthenticated.empty() && now >= unauthenticated.front().connected_at +
                                                std::chrono::milliseconds(limits.handshake_ms))
    drop(unauthenticated.front());
  while (!deadlines.empty() && now >= deadlines.begin()->first) {
    Peer& peer = *deadlines.begin()->second;
    stop_waiting(peer);
    peer.out = make_answer(StoreAnswer::kTimeout);
    update_peer(peer);
  }
}

}  // namespace ftrun
