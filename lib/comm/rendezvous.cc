#include "comm/rendezvous.h"

#include <csignal>
#include <cstdlib>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/text.h"
#include "comm/listen_socket.h"
#include "comm/open_files.h"
#include "comm/rendezvous_impl.h"
#include "comm/store_access.h"
#include "comm/store_opening.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Prepares c10d before its first use. Its logging is disabled: it repeats ftrun's errors in
/// another form and with stack traces. Its flight recorder is disabled: it breaks if two threads of
/// a process use communicators, and the progress board replaces it.
void prepare_c10d() {
  static const bool done = [] {
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = 3;
    ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
    // Without this variable, the address that each rank publishes holds a number for every peer.
    // All ranks must have the same setting.
    ::setenv("GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER", "1", 1);
    std::signal(SIGPIPE, SIG_IGN);  // writing to a closed connection must not end the process
    // Each rank may have as many connections as there are ranks, and rank 0 more.
    raise_open_file_limit();
    return true;
  }();
  static_cast<void>(done);
}

std::string leave_key(int rank) {
  return cat("left/", rank);
}

}  // namespace

Rendezvous::Rendezvous(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Rendezvous::~Rendezvous() = default;

std::unique_ptr<Rendezvous> Rendezvous::connect(const RendezvousOptions& options) {
  prepare_c10d();
  StoreClients clients = connect_to_store(options);
  auto impl = std::make_unique<Impl>(options, clients.main, clients.control);
  impl->connect_again = clients.connect_again;
  impl->torchrun_launch = clients.torchrun_launch;
  impl->server = clients.server;
  std::unique_ptr<Rendezvous> rendezvous(new Rendezvous(std::move(impl)));
  rendezvous->impl_->rendezvous_file = clients.rendezvous_file.get();
  const std::vector<std::string> texts =
      rendezvous->all_gather_text(kMeetingKey, identity_text(read_own_identity()));
  for (size_t rank = 0; rank < texts.size(); ++rank)
    rendezvous->impl_->identities[rank] = parse_identity(texts[rank]);
  rendezvous->impl_->rendezvous_file = nullptr;
  rendezvous->impl_->start_heartbeat();
  return rendezvous;
}

std::vector<std::unique_ptr<Rendezvous>> Rendezvous::make_in_process(
    int world_size, Milliseconds timeout, Milliseconds heartbeat,
    const WaitNoticeOptions& notices) {
  prepare_c10d();
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Rendezvous>> all;
  for (int rank = 0; rank < world_size; ++rank) {
    const RendezvousOptions options{.rank = rank,
                                    .world_size = world_size,
                                    .timeout = timeout,
                                    .heartbeat = heartbeat,
                                    .notices = notices};
    auto impl = std::make_unique<Impl>(options, store, store);
    for (PeerIdentity& identity : impl->identities) identity = read_own_identity();
    impl->connect_again = [store] { return store; };
    impl->start_heartbeat();
    all.emplace_back(new Rendezvous(std::move(impl)));
  }
  return all;
}

/// Makes a rendezvous with its own connection. It checks which ranks are alive over the heartbeat's
/// connection, which no thread holds for long.
std::unique_ptr<Rendezvous> Rendezvous::make_connection_for_thread() {
  RendezvousOptions options = impl_->options;
  options.board_fd = -1;
  auto other = std::make_unique<Impl>(options, impl_->connect_again(), impl_->control.store);
  other->identities = impl_->identities;
  other->key_prefix = "beside/";
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(other)));
}

int Rendezvous::rank() const {
  return impl_->options.rank;
}
int Rendezvous::world_size() const {
  return impl_->options.world_size;
}
const std::optional<TorchrunLaunch>& Rendezvous::torchrun_launch() const {
  return impl_->torchrun_launch;
}
const StoreServer* Rendezvous::server() const {
  return impl_->server.get();
}
ProgressBoard& Rendezvous::board() {
  return impl_->board;
}
const PeerIdentity& Rendezvous::identity(int rank) const {
  return impl_->identities.at(static_cast<size_t>(rank));
}

std::string Rendezvous::local_address() const {
  return local_address_towards(impl_->options.address, impl_->options.port);
}

void Rendezvous::set_usual_wait(Milliseconds usual) {
  impl_->usual_wait_ms = usual.count();
}

void Rendezvous::shutdown(Milliseconds limit) {
  if (world_size() == 1) return;
  const Milliseconds before = std::exchange(impl_->options.timeout, limit);
  try {
    all_gather_text("shutdown", "");
    leave(limit);
  } catch (const std::exception&) {
    // The work is done; the supervisor will report who is missing.
  }
  impl_->options.timeout = before;
}

/// Lists the keys by which ranks report that they leave, for the ranks that rank 0 waits for. Ranks
/// that have ended or are stopped are listed only with `include_ended`: they no longer read from
/// the store, but may have reported before. A rank that gave no sign of life is not listed, because
/// waiting for it would be useless.
std::vector<std::string> Rendezvous::Impl::leave_keys(bool include_ended) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < options.world_size; ++rank) {
    const ProcessState state = state_of(rank);
    const bool ended = state == ProcessState::kGone || state == ProcessState::kStopped;
    if ((include_ended || !ended) && !is_silent(rank)) keys.push_back(leave_key(rank));
  }
  return keys;
}

void Rendezvous::leave(Milliseconds limit) noexcept {
  if (world_size() == 1) return;
  try {
    if (rank() > 0) {
      // If the store has not answered for a while, this rank leaves without reporting it.
      if (!impl_->control.is_stuck()) impl_->main.set(leave_key(rank()), {}, limit);
      return;
    }
    const auto end = Clock::now() + limit;
    std::vector<std::string> awaited = impl_->leave_keys(true);
    const auto have_left = [&] {
      return impl_->main.run_operation(
          [awaited](c10d::Store& server) { return server.check(awaited); }, limit);
    };
    while (!awaited.empty() && !have_left() && Clock::now() < end) {
      std::this_thread::sleep_for(Milliseconds(1));
      awaited = impl_->leave_keys(false);
    }
  } catch (const std::exception&) {
    // The supervisor will report who is missing.
  }
}

StorePtr store_with_prefix(Rendezvous& rendezvous, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, rendezvous.impl().main.store);
}

}  // namespace ftrun
