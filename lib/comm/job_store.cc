#include "comm/job_store.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "base/hmac.h"
#include "base/uninterrupted.h"
#include "comm/listen_socket.h"
#include "comm/store_value.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kBetweenTries{50};
/// The time limit of the greeting: a listener that does not answer within it is not a store.
constexpr Milliseconds kHandshake{5000};
/// The time limit of one attempt to connect to a host that does not answer.
constexpr Milliseconds kConnect{5000};

/// AdmissionRefused holds the reason for which rank 0 refused a connection.
struct AdmissionRefused : std::runtime_error {
  AdmissionRefused(const std::string& what, bool is_temporary = false)
      : std::runtime_error(what), is_temporary(is_temporary) {}
  /// Says whether the store of an earlier start refused the connection. The store of this start may
  /// replace it soon, so the caller retries.
  bool is_temporary;
};

[[noreturn]] void throw_connection_lost(const char* what) {
  throw StoreLostError(cat("the connection to the job's store is lost (", what, ")"));
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done =
        uninterrupted([&] { return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (done <= 0) throw_connection_lost(done == 0 ? "closed" : errno_text(errno).c_str());
    bytes.remove_prefix(static_cast<size_t>(done));
  }
}

/// Receives `count` bytes, until the deadline if there is one.
std::string receive_bytes(int fd, size_t count,
                          std::optional<Clock::time_point> deadline = std::nullopt) {
  std::string bytes(count, '\0');
  size_t bytes_read = 0;
  while (bytes_read < count) {
    if (deadline) {
      const auto remaining = std::chrono::ceil<Milliseconds>(*deadline - Clock::now());
      pollfd descriptor{fd, POLLIN, 0};
      const int ready =
          remaining.count() <= 0 ? 0 : ::poll(&descriptor, 1, static_cast<int>(remaining.count()));
      if (ready == 0) throw std::runtime_error("no server of ftrun answers there");
      if (ready < 0 && errno == EINTR) continue;
      if (ready < 0) throw_connection_lost(errno_text(errno).c_str());
    }
    const ssize_t count_now =
        uninterrupted([&] { return ::recv(fd, bytes.data() + bytes_read, count - bytes_read, 0); });
    if (count_now <= 0)
      throw_connection_lost(count_now == 0 ? "closed" : errno_text(errno).c_str());
    bytes_read += static_cast<size_t>(count_now);
  }
  return bytes;
}

constexpr const char* kOneTokenEach =
    "start each rank once; jobs that run at the same time need an FTRUN_TOKEN each: "
    "FTRUN_TOKEN=$(openssl rand -hex 32)";

/// Throws an error with the reason why rank 0 does not accept this process as one of its ranks.
[[noreturn]] void throw_refused(const StoreEndpoint& endpoint, const StoreMember& own,
                                StoreAdmission admission, const StoreMember& serving) {
  const std::string who = cat("rank ", own.rank, " was refused by rank 0 at ", endpoint.address,
                              ":", endpoint.port, ": ");
  const std::string job = own.job.empty() ? "a job without a name" : cat("job \"", own.job, "\"");
  switch (admission) {
    case StoreAdmission::kOtherJob:
      throw Error(
          ExitCode::kUsage,
          cat(who, "rank 0 serves another job with the same FTRUN_TOKEN; this rank belongs to ",
              job),
          cat(kOneTokenEach, "; ranks of one job have the same output_dir and model.path"));
    case StoreAdmission::kOtherWorld:
      throw Error(ExitCode::kUsage,
                  cat(who, "rank 0's job has ", serving.world_size,
                      " ranks; this rank was started for ", own.world_size),
                  cat("give all ranks the same WORLD_SIZE; ", kOneTokenEach));
    case StoreAdmission::kEarlierStart:
      throw Error(ExitCode::kUsage,
                  cat(who, "rank 0 has restart count ", serving.attempt, ", but this rank has ",
                      own.attempt),
                  "end the processes of the earlier start, then restart all ranks together");
    case StoreAdmission::kSecondProcess:
      throw Error(ExitCode::kUsage,
                  cat(who, "another process is rank ", own.rank, " of this job already"),
                  cat(kOneTokenEach, "; if only one rank was restarted, restart all ranks"));
    case StoreAdmission::kLaterStart:
      throw AdmissionRefused(cat("rank 0 still has restart count ", serving.attempt,
                                 ", but this rank has ", own.attempt),
                             true);
    case StoreAdmission::kAdmitted:
      break;
  }
  throw AdmissionRefused("the server there does not know this job's token");
}

/// AuthenticatedConnection is a connection on which both sides have proved that they know the token
/// without showing it, with rank 0's decision about this member.
struct AuthenticatedConnection {
  OwnedFd fd;
  StoreAdmission admission;
  StoreMember serving;
};

/// Connects to the store. A host name that cannot be resolved is not a reason to stop trying: rank
/// 0's machine may start later.
OwnedFd connect_at(const StoreEndpoint& endpoint, Clock::time_point deadline) {
  try {
    return connect_to(endpoint.address, endpoint.port, std::min(deadline, Clock::now() + kConnect));
  } catch (const Error& error) {
    throw std::runtime_error(error.what());
  }
}

AuthenticatedConnection authenticate(const StoreEndpoint& endpoint, const StoreMember& member,
                                     Clock::time_point deadline) {
  OwnedFd fd = connect_at(endpoint, deadline);
  const int yes = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  const auto handshake_end = std::min(deadline, Clock::now() + kHandshake);
  const std::string greeting =
      receive_bytes(fd.get(), kStoreGreeting.size() + kChallengeBytes, handshake_end);
  if (!greeting.starts_with(kStoreGreeting))
    throw std::runtime_error("no server of ftrun answers there");
  const std::string server_challenge = greeting.substr(kStoreGreeting.size()),
                    client_challenge = random_bytes(kChallengeBytes);
  const std::string bytes = encode_member(member);
  send_all(fd.get(), client_challenge + bytes +
                         client_proof(endpoint.token, server_challenge, client_challenge, bytes));
  const std::string welcome = receive_bytes(fd.get(), kWelcomeBytes, handshake_end);
  if (welcome == std::string(kWelcomeBytes, '\0'))
    throw AdmissionRefused(
        "the store there does not know this job's token: it is another job's, or FTRUN_TOKEN "
        "differs");
  const auto admission = static_cast<StoreAdmission>(welcome[0]);
  const std::string serving = welcome.substr(1, kMemberBytes);
  if (welcome.substr(1 + kMemberBytes) !=
      server_proof(endpoint.token, server_challenge, client_challenge, admission, serving))
    throw AdmissionRefused("the server there does not know this job's token");
  return {std::move(fd), admission, decode_member(serving)};
}

OwnedFd connect_admitted(const StoreEndpoint& endpoint, const StoreMember& member,
                         Clock::time_point deadline) {
  AuthenticatedConnection connection = authenticate(endpoint, member, deadline);
  if (connection.admission != StoreAdmission::kAdmitted)
    throw_refused(endpoint, member, connection.admission, connection.serving);
  return std::move(connection.fd);
}

std::string_view text_view(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::vector<std::string_view> text_views(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

}  // namespace

bool serves_store(const StoreEndpoint& endpoint, Milliseconds limit) {
  try {
    // The job name in this greeting is random, so no server admits it; a server that accepts the
    // token answers with a refusal.
    authenticate(endpoint, {.job = hex_text(random_bytes(kInstanceBytes))}, Clock::now() + limit);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

JobStore::JobStore(FindEndpoint find_endpoint, StoreMember member, Clock::time_point deadline,
                   bool endpoint_may_change, std::shared_ptr<StoreServer> served,
                   const std::function<void(const std::string& why)>& record_failure)
    : member_(std::move(member)), served_(std::move(served)) {
  std::string why = "no server of ftrun answers there";
  // If rank 0 answered once, `why` keeps its answer: the last try may fail only because no time was
  // left.
  bool answered = false;
  do {
    try {
      if (const auto endpoint = find_endpoint()) {
        fd_ = connect_admitted(*endpoint, member_, deadline);
        endpoint_ = *endpoint;
        return;
      }
      if (!answered) why = "rank 0 has not published its address yet";
    } catch (const Error&) {
      throw;
    } catch (const AdmissionRefused& error) {
      why = error.what();
      answered = true;
      if (!endpoint_may_change && !error.is_temporary) break;
    } catch (const std::exception& error) {
      if (!answered) why = error.what();
    }
    if (record_failure) record_failure(why);
    std::this_thread::sleep_for(kBetweenTries);
  } while (Clock::now() < deadline);
  throw std::runtime_error(why);
}

c10::intrusive_ptr<c10d::Store> JobStore::clone() {
  auto copy =
      c10::make_intrusive<JobStore>([endpoint = endpoint_] { return std::optional(endpoint); },
                                    member_, Clock::now() + getTimeout(), false, served_);
  copy->setTimeout(getTimeout());
  return copy;
}

JobStore::StoreReply JobStore::send_request(StoreOperation operation,
                                            const std::vector<std::string_view>& fields,
                                            Milliseconds timeout) {
  std::string body(1, static_cast<char>(operation));
  append_number(body, timeout == Milliseconds::max()
                          ? ~uint64_t{0}
                          : static_cast<uint64_t>(std::max<int64_t>(timeout.count(), 0)));
  for (const std::string_view field : fields) append_field(body, field);
  if (body.size() > kMaxRequestBytes || fields.size() > kMaxFields)
    throw std::runtime_error(
        cat("a request of ", body.size(), " bytes is too large for the job's store"));
  std::string head;
  append_number(head, static_cast<uint32_t>(body.size()));
  const std::lock_guard lock(mutex_);
  try {
    send_all(fd_.get(), head + body);
    const auto size = read_number<uint32_t>(receive_bytes(fd_.get(), sizeof(uint32_t)), 0);
    if (size == 0 || size > kMaxStoredBytes) throw_connection_lost("a malformed answer");
    StoreReply reply{
        .answer = StoreAnswer::kRefused, .bytes = receive_bytes(fd_.get(), size), .fields = {}};
    reply.answer = static_cast<StoreAnswer>(reply.bytes[0]);
    return reply;
  } catch (const std::exception&) {
    // The connection is closed, because unread bytes of this answer would be read as the answer to
    // the next request. (There may have been too little memory to read them.)
    ::shutdown(fd_.get(), SHUT_RDWR);
    throw;
  }
}

JobStore::StoreReply JobStore::request_or_throw(StoreOperation operation,
                                                const std::vector<std::string_view>& asked,
                                                size_t results, Milliseconds timeout) {
  StoreReply reply = send_request(operation, asked, timeout);
  if (reply.answer == StoreAnswer::kTimeout)
    throw std::runtime_error(
        cat("the job's store did not have all requested keys (", asked.size(), ") in time"));
  const auto fields = parse_fields(std::string_view(reply.bytes).substr(1));
  if (reply.answer != StoreAnswer::kDone || !fields || fields->size() != results)
    throw std::runtime_error("the job's store refused a request");
  reply.fields.assign(fields->begin(), fields->end());
  return reply;
}

void JobStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  request_or_throw(StoreOperation::kSet, {key, text_view(value)}, 0);
}

std::vector<uint8_t> JobStore::compareSet(const std::string& key,
                                          const std::vector<uint8_t>& expected,
                                          const std::vector<uint8_t>& wanted) {
  return bytes_of(request_or_throw(StoreOperation::kCompareSet,
                                   {key, text_view(expected), text_view(wanted)}, 1)
                      .fields[0]);
}

std::vector<uint8_t> JobStore::get(const std::string& key) {
  return bytes_of(request_or_throw(StoreOperation::kGet, {key}, 1, getTimeout()).fields[0]);
}

int64_t JobStore::add(const std::string& key, int64_t value) {
  const std::string number = std::to_string(value);
  return std::stoll(request_or_throw(StoreOperation::kAdd, {key, number}, 1).fields[0]);
}

bool JobStore::deleteKey(const std::string& key) {
  return send_request(StoreOperation::kDelete, {key}).answer == StoreAnswer::kDone;
}

bool JobStore::check(const std::vector<std::string>& keys) {
  return send_request(StoreOperation::kCheck, text_views(keys)).answer == StoreAnswer::kDone;
}

int64_t JobStore::getNumKeys() {
  return std::stoll(request_or_throw(StoreOperation::kCount, {}, 1).fields[0]);
}

void JobStore::wait(const std::vector<std::string>& keys, const Milliseconds& timeout) {
  request_or_throw(StoreOperation::kWait, text_views(keys), 0, timeout);
}

void JobStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  request_or_throw(StoreOperation::kAppend, {key, text_view(value)}, 0);
}

std::vector<std::vector<uint8_t>> JobStore::multiGet(const std::vector<std::string>& keys) {
  const StoreReply reply =
      request_or_throw(StoreOperation::kGet, text_views(keys), keys.size(), getTimeout());
  std::vector<std::vector<uint8_t>> values;
  for (const std::string& field : reply.fields) values.push_back(bytes_of(field));
  return values;
}

void JobStore::multiSet(const std::vector<std::string>& keys,
                        const std::vector<std::vector<uint8_t>>& values) {
  std::vector<std::string_view> fields;
  for (size_t i = 0; i < keys.size(); ++i) {
    fields.push_back(keys[i]);
    fields.push_back(text_view(values.at(i)));
  }
  request_or_throw(StoreOperation::kSet, fields, 0);
}

}  // namespace ftrun
