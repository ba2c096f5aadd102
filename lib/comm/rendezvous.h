#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/wait_notice.h"
#include "cluster/peers.h"
#include "cluster/progress_board.h"

namespace ftrun {

struct RendezvousOptions {
  int rank = 0;
  int world = 1;
  /// The address at which rank 0 serves the store: name or address, and port. Port 0: any, which
  /// the meeting file records, or one that follows from the token.
  std::string address = "127.0.0.1";
  int port = 0;
  /// Rank 0: a bound socket to serve on (inherited from the supervisor); -1 makes one, bound only
  /// to `address`.
  int listen_fd = -1;
  /// The tables of our supervisor's ranks (cluster/local_boards.h) and the index of ours; -1 for
  /// none.
  int board_fd = -1;
  int local_rank = 0;
  /// torchrun's agent serves the store: every rank joins as a client.
  bool agent_store = false;
  /// Restarts so far, where one launcher counts them for all ranks, so that ranks of different
  /// attempts do not mix.
  int attempt = 0;
  /// The time limit of meeting, and of every exchange.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// The time between two heartbeats, with which a rank shows the others that it is alive and what
  /// it is doing.
  std::chrono::milliseconds heartbeat = std::chrono::seconds(1);
  /// The token that lets a rank into the store of rank 0; all ranks of a job have the same. "":
  /// they meet by the file.
  std::string token;
  /// The file where rank 0 writes a token, and its port where `port` is 0, until all have met.
  std::string meeting_file;
  /// A text that is equal on all ranks of the job and different for every other job, such as the
  /// launcher's name of the job.
  std::string job;
  /// Options of the notices of waits for other ranks: in meeting, in exchanges and in collectives.
  WaitNoticeOptions notices;
};

/// AgentLaunch is what ranks know of the torchrun that started them, from its agent's store.
struct AgentLaunch {
  /// The name of the launch, the same at each of its starts.
  std::string name;
  int earlier_starts = 0;
};

/// WaitPolicy describes how long an exchange waits for the ranks that have not arrived.
enum class WaitPolicy {
  /// Waits for RendezvousOptions::timeout.
  kTimeout,
  /// Waits as long as they show that they live: for work of a single rank, which may take any time.
  /// A rank that gave no sign of life for RendezvousOptions::timeout is lost.
  kWhileAlive,
};

class StoreServer;

/// Rendezvous connects the ranks of a job and exchanges small texts among them. Exchanges are
/// collective: every member calls them in the same order. Only one thread at a time may use it.
class Rendezvous {
 public:
  /// Blocks until every rank has come. Error(kEnvironment) when rank 0's port is taken;
  /// Error(kPeerLost) naming the missing ranks after the timeout.
  static std::unique_ptr<Rendezvous> connect(const RendezvousOptions& options);
  /// Makes all ranks in this process, for tests: hand one to each thread.
  static std::vector<std::unique_ptr<Rendezvous>> in_process(
      int world, std::chrono::milliseconds timeout = std::chrono::seconds(30),
      std::chrono::milliseconds heartbeat = std::chrono::milliseconds(100),
      const WaitNoticeOptions& notices = {});
  /// Makes another connection of this rank, for another thread: exchanges over it are separate from
  /// exchanges over this one. It knows from this one's heartbeats which ranks live.
  std::unique_ptr<Rendezvous> make_connection_for_thread();
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int rank() const;
  int world() const;
  /// Returns the launch of torchrun; nothing if no agent serves the store.
  const std::optional<AgentLaunch>& agent_launch() const;

  /// Returns the store that this rank serves; null where it serves none.
  const StoreServer* server() const;

  /// Sends a text of every rank to all of them, by rank. A key may be used again and again.
  /// Error(kPeerLost) names the ranks that did not come, at once when one is known to be dead.
  std::vector<std::string> exchange_text(const std::string& key, const std::string& text,
                                         WaitPolicy patience = WaitPolicy::kTimeout);
  /// Exchanges a text among some ranks (global, ascending, ours among them).
  std::vector<std::string> exchange_text(const std::string& key, const std::string& text,
                                         const std::vector<int>& members,
                                         WaitPolicy patience = WaitPolicy::kTimeout);
  /// Leaves a text that any rank may find at any time.
  void post(const std::string& key, const std::string& text);
  std::optional<std::string> find(const std::string& key);

  const PeerIdentity& identity(int rank) const;
  ProgressBoard& board();
  /// Returns this machine's address on the network that leads to rank 0.
  std::string local_address() const;
  /// Views what is known now of the members of a group, by place in it: for explaining a failure.
  /// Shows our own state first; may take two heartbeats where one of them has another supervisor.
  std::vector<PeerView> view(const std::vector<int>& members, const std::string& group);
  /// Views any ranks, from what they have shown so far.
  std::vector<PeerView> view_ranks(const std::vector<int>& ranks);
  /// Leaves a note for the others that this rank has given the group up, for groups whose transport
  /// does not report it.
  void give_up(const std::string& group, const std::string& reason) noexcept;
  /// Returns whether a member's process is known to have ended, or one has given the group up. Asks
  /// the store; any thread.
  bool any_lost(const std::vector<int>& members, const std::string& group);

  /// Sets the usual length of waits in collectives of this run: waits up to it are not logged. Any
  /// thread.
  void expect_waits(std::chrono::milliseconds usual);

  /// Collective: returns when every rank has called it, so that rank 0 may end. Gives up quietly
  /// after `limit`.
  void shutdown(std::chrono::milliseconds limit = std::chrono::seconds(10));
  /// Ends this rank. Rank 0 serves data that the others may still be reading: it waits until they
  /// have left too, at most `limit`.
  void leave(std::chrono::milliseconds limit) noexcept;

  /// Impl holds the c10d store (comm/store_access.h).
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit Rendezvous(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ftrun
