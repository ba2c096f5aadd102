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
  int world_size = 1;
  /// The address at which rank 0 serves the store: host name or address, and port. Port 0: any free
  /// port, which the rendezvous file records, or a port that is computed from the token.
  std::string address = "127.0.0.1";
  int port = 0;
  /// Rank 0: a bound socket to serve on (inherited from the supervisor); -1 to open one, bound only
  /// to `address`.
  int listen_fd = -1;
  /// The boards of the ranks of this rank's supervisor (cluster/local_boards.h), -1 for none; and
  /// this rank's index among them.
  int board_fd = -1;
  int local_rank = 0;
  /// Says whether torchrun's agent serves the store; every rank then joins as a client.
  bool has_torchrun_store = false;
  /// The number of restarts so far, if one launcher counts them for all ranks. It keeps ranks of
  /// different attempts from joining each other.
  int attempt = 0;
  /// The time limit for all ranks to connect, and of every exchange.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// The time between two heartbeats, with which a rank shows the others that it is alive and what
  /// it is doing.
  std::chrono::milliseconds heartbeat = std::chrono::seconds(1);
  /// The token that admits a rank to the store of rank 0; all ranks of a job have the same. "":
  /// rank 0 draws one, and the other ranks read it from the rendezvous file.
  std::string token;
  /// The file in which rank 0 writes the token that it draws, and its port if `port` is 0; the file
  /// exists until all ranks have met.
  std::string rendezvous_file;
  /// A text that is equal on all ranks of the job and different for every other job, such as the
  /// launcher's name of the job.
  std::string job;
  /// Options of the messages about waits for other ranks: for their arrival, in exchanges and in
  /// collectives.
  WaitNoticeOptions notices;
};

/// TorchrunLaunch is what ranks know of the torchrun launch that started them, read from the
/// agent's store.
struct TorchrunLaunch {
  /// The name of the launch, the same at each of its starts.
  std::string name;
  int earlier_starts = 0;
};

/// WaitPolicy describes how long an exchange waits for the ranks that have not arrived.
enum class WaitPolicy {
  /// Waits for RendezvousOptions::timeout.
  kTimeout,
  /// Waits as long as these ranks show that they are alive: for work of a single rank, which may
  /// take any time. A rank that gave no sign of life for RendezvousOptions::timeout, or for 30
  /// heartbeats if that is longer, is lost.
  kWhileAlive,
};

class StoreServer;

/// Rendezvous connects the ranks of a job and exchanges small texts among them. Exchanges are
/// collective: every member calls them in the same order. Only one thread at a time may use it.
class Rendezvous {
 public:
  /// Connects to all ranks; returns when every rank has joined. The first call changes the process:
  /// it sets environment variables of c10d, ignores SIGPIPE, and raises the limit of open files.
  /// Throws Error(kEnvironment) if rank 0's port is taken, and Error(kPeerLost) naming the missing
  /// ranks after the timeout.
  static std::unique_ptr<Rendezvous> connect(const RendezvousOptions& options);
  /// Makes all ranks in this process, for tests: give one to each thread.
  static std::vector<std::unique_ptr<Rendezvous>> make_in_process(
      int world_size, std::chrono::milliseconds timeout = std::chrono::seconds(30),
      std::chrono::milliseconds heartbeat = std::chrono::milliseconds(100),
      const WaitNoticeOptions& notices = {});
  /// Makes another connection of this rank, for another thread: exchanges over it are separate from
  /// exchanges over this connection. It learns from this connection's heartbeats which ranks are
  /// alive.
  std::unique_ptr<Rendezvous> make_connection_for_thread();
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int rank() const;
  int world_size() const;
  /// Returns the launch of torchrun; nothing if no agent serves the store.
  const std::optional<TorchrunLaunch>& torchrun_launch() const;

  /// Returns the store that this rank serves; null if it serves none.
  const StoreServer* server() const;

  /// Sends this rank's text to all ranks; returns the texts of all, by rank. A key may be used
  /// again and again. Throws Error(kPeerLost) naming the ranks that did not come, at once if one is
  /// known to be dead.
  std::vector<std::string> all_gather_text(const std::string& key, const std::string& text,
                                           WaitPolicy policy = WaitPolicy::kTimeout);
  /// Does the same among some ranks (global, ascending, this rank among them).
  std::vector<std::string> all_gather_text(const std::string& key, const std::string& text,
                                           const std::vector<int>& members,
                                           WaitPolicy policy = WaitPolicy::kTimeout);
  /// Writes a text to the store, where find_text() finds it on any rank at any time. Does nothing
  /// if rank 0, which serves the store, is stopped.
  void post_text(const std::string& key, const std::string& text);
  std::optional<std::string> find_text(const std::string& key);

  const PeerIdentity& identity(int rank) const;
  ProgressBoard& board();
  /// Returns this machine's address on the network that leads to rank 0.
  std::string local_address() const;
  /// Returns what is known now of the members of a group, in their order, to explain a failure.
  /// Shows this rank's own state first. May block for two heartbeats if a member has another
  /// supervisor.
  std::vector<PeerView> view_members(const std::vector<int>& members, const std::string& group);
  /// Returns what is known of any ranks from what they have shown so far.
  std::vector<PeerView> view_ranks(const std::vector<int>& ranks);
  /// Records in the store that this rank has aborted the group, for groups whose transport does not
  /// report this.
  void post_abort(const std::string& group, const std::string& reason) noexcept;
  /// Returns whether a member's process is known to have ended, or a member has aborted the group
  /// (post_abort). Asks the store; any thread.
  bool is_any_lost(const std::vector<int>& members, const std::string& group);

  /// Sets the usual length of waits in collectives of this run: waits up to it are not logged. Any
  /// thread.
  void set_usual_wait(std::chrono::milliseconds usual);

  /// Collective: returns when every rank has called it, so that rank 0 may end. Returns without an
  /// error after `limit` if some have not.
  void shutdown(std::chrono::milliseconds limit = std::chrono::seconds(10));
  /// Leaves the job. Rank 0 serves data that the others may still be reading, so it waits, for at
  /// most `limit`, until they have left too.
  void leave(std::chrono::milliseconds limit) noexcept;

  /// Impl holds the c10d store (comm/store_access.h).
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit Rendezvous(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ftrun
