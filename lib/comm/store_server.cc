#include "comm/store_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hmac.h"
#include "base/log.h"
#include "comm/store_protocol.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

/// After a shortage of descriptors or memory accepting waits for a moment.
constexpr std::chrono::milliseconds kShortage{100};
constexpr size_t kReadBytes = 64 << 10;

/// Longer values are sent from where they are kept: one that all ranks ask for at a time is in memory once.
constexpr size_t kSharedBytes = 4096;

/// So many bytes in a sum, until it is destroyed.
class Counted {
 public:
  explicit Counted(int64_t& sum, size_t bytes = 0) : sum_(sum) { set(bytes); }
  ~Counted() { set(0); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  void set(size_t bytes) {
    sum_ += static_cast<int64_t>(bytes) - bytes_;
    bytes_ = static_cast<int64_t>(bytes);
  }

 private:
  int64_t& sum_;
  int64_t bytes_ = 0;
};

using Value = std::shared_ptr<const std::string>;

/// Counted once, with its key, however many are being sent it, and until the last has it.
Value value_of(std::string_view key, std::string_view text, int64_t& sum) {
  struct Kept {
    Kept(std::string_view from, int64_t& of, size_t bytes) : text(from), counted(of, bytes) {}
    std::string text;
    Counted counted;
  };
  const auto kept = std::make_shared<Kept>(text, sum, key.size() + text.size());
  return {kept, &kept->text};
}

struct Request {
  StoreOperation operation{};
  std::optional<Clock::time_point> until;
  std::vector<std::string> fields;
  /// Of all fields.
  size_t bytes = 0;
  /// Of the keys, so many were there when they were looked at last.
  size_t seen = 0;
};

/// What a peer has yet to be sent.
struct Outgoing {
  std::string bytes;
  /// After them.
  Value value;
  size_t sent = 0;

  bool empty() const { return sent == bytes.size() + (value ? value->size() : 0); }
  std::string_view next() const {
    const std::string_view head = bytes, tail = value ? std::string_view(*value) : std::string_view();
    return sent < head.size() ? head.substr(sent) : tail.substr(sent - head.size());
  }
};

struct Peer {
  Peer(OwnedFd connection, int64_t& sum) : fd(std::move(connection)), counted(sum) {}

  OwnedFd fd;
  bool member = false;
  Clock::time_point came = Clock::now();
  std::string challenge;
  std::string in;
  Outgoing out;
  /// One whose keys are not there yet.
  std::optional<Request> waiting;
  /// What it said and is to be sent, but for values that are sent from where they are kept.
  Counted counted;
};

Outgoing answer(StoreAnswer kind, const std::vector<std::string_view>& fields = {}) {
  std::string body(1, static_cast<char>(kind));
  for (const std::string_view field : fields) put_field(body, field);
  std::string bytes;
  put_number(bytes, static_cast<uint32_t>(body.size()));
  return {.bytes = bytes + body};
}

/// The value, from where it is kept.
Outgoing answer_with(const Value& field) {
  Outgoing out;
  put_number(out.bytes, static_cast<uint32_t>(1 + sizeof(uint32_t) + field->size()));
  out.bytes += static_cast<char>(StoreAnswer::kDone);
  put_number(out.bytes, static_cast<uint32_t>(field->size()));
  out.value = field;
  return out;
}

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

struct StoreServer::Loop {
  Loop(StoreServer& server, OwnedFd listening, std::string secret, const StoreMember& serving, Limits given)
      : owner(server), listener(std::move(listening)), token(std::move(secret)), own(member_bytes(serving)), limits(given) {
    instances.emplace(serving.rank, serving.instance);
  }

  void serve(int wake);
  int next_timeout() const;
  void accept_all();
  void drop_oldest_stranger();
  bool read_from(Peer& peer);
  bool write_to(Peer& peer);
  bool take_input(Peer& peer);
  bool admit(Peer& peer);
  StoreVerdict judge(std::string_view member);
  std::optional<Request> parse(std::string_view body) const;
  void start(Peer& peer, Request request);
  bool keys_are_there(Request& request) const;
  Outgoing run(const Request& request);
  Outgoing values_of(const std::vector<std::string>& keys) const;
  bool send_next(Peer& peer);
  void note(Peer& peer);
  void note_stored();
  bool store(const std::string& key, std::string_view value);
  Outgoing add(const Request& request);
  void look_at_waiting();
  void expire();

  StoreServer& owner;
  OwnedFd listener;
  const std::string token;
  const std::string own;
  const Limits limits;
  /// Of what is stored, asked for and to be sent.
  int64_t held_bytes = 0;
  std::list<Peer> peers;
  /// The process that each rank is; who serves is one from the start, before anybody can come in its name.
  std::unordered_map<uint32_t, std::string> instances;
  int strangers = 0;
  std::unordered_map<std::string, Value> values;
  size_t stored_bytes = 0;
  bool changed = false;
  Clock::time_point accept_after{};
  bool told_shortage = false;
};

StoreServer::StoreServer(OwnedFd listening, std::string token, const StoreMember& own, Limits limits)
    : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      loop_(std::make_unique<Loop>(*this, std::move(listening), std::move(token), own, limits)) {
  // One that was inherited blocks.
  ::fcntl(loop_->listener.get(), F_SETFL, ::fcntl(loop_->listener.get(), F_GETFL) | O_NONBLOCK);
  ::fcntl(loop_->listener.get(), F_SETFD, FD_CLOEXEC);
  if (!wake_) throw Error(ExitCode::kEnvironment, cat("eventfd: ", errno_text(errno)));
  thread_ = std::thread([this] { loop_->serve(wake_.get()); });
}

StoreServer::~StoreServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t done = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void StoreServer::Loop::serve(int wake) {
  std::vector<pollfd> polled;
  for (;;) {
    const bool accepts = Clock::now() >= accept_after;
    polled = {{wake, POLLIN, 0}, {accepts ? listener.get() : -1, POLLIN, 0}};
    for (const Peer& peer : peers) {
      // Who waits, or has an answer to fetch, has nothing to say.
      const bool listens = !peer.waiting && peer.out.empty();
      const int wanted = (listens ? POLLIN : POLLRDHUP) | (peer.out.empty() ? 0 : POLLOUT);
      polled.push_back({peer.fd.get(), static_cast<short>(wanted), 0});
    }
    ::poll(polled.data(), polled.size(), next_timeout());
    if (polled[0].revents != 0) return;
    size_t at = 2;
    for (auto peer = peers.begin(); peer != peers.end(); ++at) {
      const int events = polled[at].revents;
      bool stays = (events & (POLLERR | POLLNVAL)) == 0;
      if (stays && (events & POLLOUT) != 0) stays = write_to(*peer);
      if (stays && (events & (POLLIN | POLLHUP | POLLRDHUP)) != 0) stays = read_from(*peer);
      if (stays) {
        if (events != 0) note(*peer);
        ++peer;
        continue;
      }
      if (!peer->member) --strangers, ++owner.refused_;
      peer = peers.erase(peer);
    }
    if (polled[1].revents != 0) accept_all();
    expire();
    if (changed) look_at_waiting();
  }
}

int StoreServer::Loop::next_timeout() const {
  std::optional<Clock::time_point> first;
  const auto consider = [&](Clock::time_point when) { first = std::min(first.value_or(when), when); };
  for (const Peer& peer : peers) {
    if (!peer.member) consider(peer.came + std::chrono::milliseconds(limits.handshake_ms));
    if (peer.waiting && peer.waiting->until) consider(*peer.waiting->until);
  }
  if (accept_after > Clock::now()) consider(accept_after);
  if (!first) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*first - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

void StoreServer::Loop::accept_all() {
  // In portions: those that have come already are served in between.
  for (int portion = 0; portion < 64; ++portion) {
    OwnedFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      if (!std::exchange(told_shortage, true))
        log_warning(cat("rank 0, which serves the job's store, cannot take another connection for now: ", errno_text(errno),
                        errno == EMFILE ? "; a higher ulimit -n on its machine lets it" : ""));
      accept_after = Clock::now() + kShortage;
      return;
    }
    const int yes = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (strangers >= limits.strangers) drop_oldest_stranger();
    Peer& peer = peers.emplace_back(std::move(fd), held_bytes);
    peer.challenge = random_bytes(kChallengeBytes);
    peer.out.bytes = cat(kStoreGreeting, peer.challenge);
    ++strangers;
    if (write_to(peer)) {
      note(peer);
    } else {
      peers.pop_back(), --strangers, ++owner.refused_;
    }
  }
}

void StoreServer::Loop::drop_oldest_stranger() {
  const auto oldest = std::ranges::find_if(peers, [](const Peer& peer) { return !peer.member; });
  peers.erase(oldest);
  --strangers;
  ++owner.refused_;
}

/// False when the connection is to be closed.
bool StoreServer::Loop::read_from(Peer& peer) {
  if (peer.waiting) return false;  // it left, or speaks out of turn
  const size_t wanted = peer.member ? kReadBytes : kHelloBytes - peer.in.size();
  char buffer[kReadBytes];
  const ssize_t got = ::recv(peer.fd.get(), buffer, wanted, 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  peer.in.append(buffer, static_cast<size_t>(got));
  return take_input(peer);
}

/// As much as the connection takes now; false when it is lost.
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
  return send_next(peer) && (!peer.out.empty() || take_input(peer));
}

/// After what one peer said or was sent; who does nothing costs nothing.
void StoreServer::Loop::note(Peer& peer) {
  peer.counted.set(peer.in.size() + peer.out.bytes.size() + (peer.waiting ? peer.waiting->bytes : 0));
  owner.most_bytes_ = std::max(owner.most_bytes_.load(), held_bytes);
}

void StoreServer::Loop::note_stored() {
  owner.keys_ = static_cast<int64_t>(values.size());
  owner.most_bytes_ = std::max(owner.most_bytes_.load(), held_bytes);
}

/// Requests one at a time: the next is read when the answer to the last is out.
bool StoreServer::Loop::take_input(Peer& peer) {
  if (!peer.member) return peer.in.size() < kHelloBytes || admit(peer);
  while (!peer.waiting && peer.out.empty() && peer.in.size() >= sizeof(uint32_t)) {
    const auto size = number_at<uint32_t>(peer.in, 0);
    if (size > kMostRequestBytes) return false;
    if (peer.in.size() < sizeof size + size) return true;
    auto request = parse(std::string_view(peer.in).substr(sizeof size, size));
    peer.in.erase(0, sizeof size + size);
    if (!request) return false;
    start(peer, std::move(*request));
    if (!send_next(peer)) return false;
  }
  return true;
}

bool StoreServer::Loop::admit(Peer& peer) {
  const std::string theirs = peer.in.substr(0, kChallengeBytes), member = peer.in.substr(kChallengeBytes, kMemberBytes);
  const std::string expected = client_proof(token, peer.challenge, theirs, member);
  const std::string_view given = std::string_view(peer.in).substr(kChallengeBytes + kMemberBytes);
  const auto refuse = [&](const std::string& reply) {
    [[maybe_unused]] const ssize_t told = ::send(peer.fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
    return false;
  };
  if (!equal_in_constant_time(bytes_of(expected), bytes_of(given))) return refuse(std::string(kWelcomeBytes, '\0'));
  if (static_cast<int>(peers.size()) - strangers >= limits.members) return false;
  const StoreVerdict verdict = judge(member);
  const std::string reply =
      cat(static_cast<char>(verdict), own, server_proof(token, peer.challenge, theirs, verdict, own));
  if (verdict != StoreVerdict::kAdmitted) return refuse(reply);
  peer.member = true;
  --strangers;
  ++owner.admitted_;
  peer.in.clear();
  peer.out.bytes += reply;
  return write_to(peer);
}

/// Of one who knows the token.
StoreVerdict StoreServer::Loop::judge(std::string_view member) {
  const StoreVerdict verdict = compare_members(own, member);
  if (verdict != StoreVerdict::kAdmitted) return verdict;
  const StoreMember joining = member_from(member);
  const auto [known, is_new] = instances.emplace(joining.rank, joining.instance);
  return is_new || known->second == joining.instance ? verdict : StoreVerdict::kSecondProcess;
}

std::optional<Request> StoreServer::Loop::parse(std::string_view body) const {
  constexpr size_t kHead = 1 + sizeof(uint64_t);
  if (body.size() < kHead) return std::nullopt;
  Request request{.operation = static_cast<StoreOperation>(body[0])};
  const auto wait = number_at<uint64_t>(body, 1);
  if (wait < uint64_t{1} << 40) request.until = Clock::now() + std::chrono::milliseconds(wait);
  const auto fields = fields_of(body.substr(kHead));
  if (!fields) return std::nullopt;
  request.fields.assign(fields->begin(), fields->end());
  request.bytes = body.size();
  return request;
}

void StoreServer::Loop::start(Peer& peer, Request request) {
  const bool waits = request.operation == StoreOperation::kGet || request.operation == StoreOperation::kWait;
  if (waits && !keys_are_there(request)) {
    peer.waiting = std::move(request);
    return;
  }
  peer.out = run(request);
}

/// Goes on where the last look ended, so that one who waits for many keys is not looked at all over again at each; in the
/// end all are looked at, as some may have been deleted meanwhile.
bool StoreServer::Loop::keys_are_there(Request& request) const {
  const auto is_there = [&](const std::string& key) { return values.contains(key); };
  const std::vector<std::string>& keys = request.fields;
  const auto first = keys.begin() + static_cast<ptrdiff_t>(request.seen);
  request.seen = static_cast<size_t>(std::find_if_not(first, keys.end(), is_there) - keys.begin());
  if (request.seen < keys.size()) return false;
  request.seen = 0;
  return std::ranges::all_of(keys, is_there);
}

Outgoing StoreServer::Loop::values_of(const std::vector<std::string>& keys) const {
  if (keys.size() == 1 && values.at(keys[0])->size() >= kSharedBytes) return answer_with(values.at(keys[0]));
  std::vector<std::string_view> found;
  for (const std::string& key : keys) found.push_back(*values.at(key));
  return answer(StoreAnswer::kDone, found);
}

/// False where the store has no room for it.
bool StoreServer::Loop::store(const std::string& key, std::string_view value) {
  const auto known = values.find(key);
  const size_t before = known == values.end() ? 0 : key.size() + known->second->size();
  const size_t after = stored_bytes - before + key.size() + value.size();
  if (key.size() > kMostKeyBytes || after > kMostStoredBytes) return false;
  stored_bytes = after;
  values[key] = value_of(key, value, held_bytes);
  changed = true;
  note_stored();
  return true;
}

/// Numbers are kept as their decimal text, as c10d's stores do.
Outgoing StoreServer::Loop::add(const Request& request) {
  int64_t sum = 0, more = 0;
  const auto read = [](std::string_view text, int64_t& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
  };
  const auto known = values.find(request.fields[0]);
  if (!read(request.fields[1], more) || (known != values.end() && !read(*known->second, sum)) ||
      __builtin_add_overflow(sum, more, &sum) || !store(request.fields[0], std::to_string(sum)))
    return answer(StoreAnswer::kRefused);
  return answer(StoreAnswer::kDone, {*values[request.fields[0]]});
}

Outgoing StoreServer::Loop::run(const Request& request) {
  const std::vector<std::string>& fields = request.fields;
  ++owner.requests_;
  const auto need = [&](size_t count) { return fields.size() == count; };
  switch (request.operation) {
    case StoreOperation::kSet: {
      if (fields.size() % 2 != 0) break;
      bool fits = true;
      for (size_t i = 0; i < fields.size(); i += 2) fits = store(fields[i], fields[i + 1]) && fits;
      return answer(fits ? StoreAnswer::kDone : StoreAnswer::kRefused);
    }
    case StoreOperation::kGet:
      return values_of(fields);
    case StoreOperation::kWait:
      return answer(StoreAnswer::kDone);
    case StoreOperation::kCheck:
      return answer(std::ranges::all_of(fields, [&](const std::string& key) { return values.contains(key); }) ? StoreAnswer::kDone
                                                                                                               : StoreAnswer::kNo);
    case StoreOperation::kAdd:
      if (need(2)) return add(request);
      break;
    case StoreOperation::kAppend:
      if (need(2))
        return answer(store(fields[0], values.contains(fields[0]) ? *values[fields[0]] + fields[1] : fields[1])
                          ? StoreAnswer::kDone
                          : StoreAnswer::kRefused);
      break;
    case StoreOperation::kCompareSet: {
      if (!need(3)) break;
      const auto known = values.find(fields[0]);
      if (known == values.end() && !fields[1].empty()) return answer(StoreAnswer::kDone, {fields[1]});
      if (known != values.end() && *known->second != fields[1]) return answer(StoreAnswer::kDone, {*known->second});
      if (!store(fields[0], fields[2])) return answer(StoreAnswer::kRefused);
      return answer(StoreAnswer::kDone, {fields[2]});
    }
    case StoreOperation::kDelete: {
      if (!need(1)) break;
      const auto known = values.find(fields[0]);
      if (known == values.end()) return answer(StoreAnswer::kNo);
      stored_bytes -= known->first.size() + known->second->size();
      values.erase(known);
      note_stored();
      return answer(StoreAnswer::kDone);
    }
    case StoreOperation::kCount:
      return answer(StoreAnswer::kDone, {std::to_string(values.size())});
  }
  return answer(StoreAnswer::kRefused);
}

void StoreServer::Loop::look_at_waiting() {
  changed = false;
  for (Peer& peer : peers) {
    if (!peer.waiting || !keys_are_there(*peer.waiting)) continue;
    peer.out = run(*peer.waiting);
    peer.waiting.reset();
    note(peer);
  }
}

void StoreServer::Loop::expire() {
  const auto now = Clock::now();
  const auto late = [&](const Peer& peer) {
    return !peer.member && now >= peer.came + std::chrono::milliseconds(limits.handshake_ms);
  };
  const auto gone = static_cast<int>(std::erase_if(peers, late));
  strangers -= gone;
  owner.refused_ += gone;
  for (Peer& peer : peers) {
    if (!peer.waiting || !peer.waiting->until || now < *peer.waiting->until) continue;
    peer.waiting.reset();
    peer.out = answer(StoreAnswer::kTimeout);
    note(peer);
  }
}

}  // namespace ftrun
