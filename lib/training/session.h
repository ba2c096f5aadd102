#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cores.h"
#include "checkpoint/checkpoint_group.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "engine/gpu.h"
#include "engine/rank_communicators.h"
#include "inputs/train_request.h"
#include "program/state_options.h"
#include "training/node_facts.h"

namespace ftrun {

/// Session is this rank's connection to the other ranks: rendezvous, device, communicators and
/// exchanges of text.
///
/// Numbers and texts of the ranks are combined in three ways. Choose the cheapest that serves:
///
/// * a RankFlag (program/loss_slots.h), set in StepRun::flags before a step and read from
///   StepResult::flags_of_all_ranks after it: the ranks that set it are counted in the step's own
///   all-reduce, with the loss, so it costs no communication of its own and may be used in every
///   step;
/// * sum(): an additional all-reduce of doubles, in which this rank waits for all others. Call it
///   in every step only for a number that must be known then; a number that may wait is summed
///   every few steps, as SlowRankFinder does, or once after the last step;
/// * all_gather_text(), and the functions below that are built on it: a round trip of every rank to
///   the job's store, which joins the texts and sends them to all. It is for starts, ends and rare
///   events (a checkpoint, a step that is not finite), never for every step.
class Session {
 public:
  /// Connects to the other ranks, and removes the job's token from the environment. Collective.
  /// Throws Error(kEnvironment) for a port in use, Error(kPeerLost) for ranks that never connect,
  /// Error(kUsage) naming the ranks that were started with another build or config, or that share a
  /// GPU, and the errors of open_gpu().
  explicit Session(const TrainRequest& request);
  /// Does the same for ranks that are connected through `rendezvous` already. Collective.
  Session(const TrainRequest& request, std::unique_ptr<Rendezvous> rendezvous);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  bool is_first() const { return rank_ == 0; }
  /// Returns the launch of ranks that torchrun started.
  const std::optional<TorchrunLaunch>& torchrun_launch() const {
    return rendezvous_->torchrun_launch();
  }
  /// Collective: returns the number of threads on which this rank computes. It depends on the cores
  /// that all ranks of its machine may use (cluster/core_share).
  int share_cores(const CoreLimit& core_limit);
  /// Returns the GPU; null when the ranks compute on CPUs. All ranks compute on the same kind
  /// of device.
  Gpu* gpu() { return gpu_.get(); }
  /// Returns the name of every rank's GPU; empty on CPUs.
  const std::vector<std::string>& gpu_names() const { return gpu_names_; }
  /// Collective: opens the communicators of this rank, which communicators() then returns.
  void open_communicators(const Config& config, const StateOptions& state);
  const RankCommunicators& communicators() const { return communicators_->communicators(); }

  /// Collective: returns the texts of all ranks, in rank order. Every rank waits for the job's
  /// store, so it is not for every step.
  std::vector<std::string> all_gather_text(const std::string& what, const std::string& text);
  /// Collective: runs `work` on each rank. If any rank throws an Error, all ranks throw it; its
  /// message begins with `what` ("reading the data") and the rank.
  void run_on_all_ranks(const std::string& what, const std::function<void()>& work);
  /// Collective: returns rank 0's text on every rank. If rank 0 throws an Error, all ranks throw
  /// it. The other ranks wait as long as rank 0 is alive.
  std::string broadcast_text(const std::string& what, const std::function<std::string()>& text);
  /// Collective: returns rank 0's answer to a question, in the same way.
  bool broadcast_decision(const std::string& what, const std::function<bool()>& question);
  /// Collective: throws Error(kUsage) that names each node that differs from rank 0's node, and the
  /// facts that differ. `topic` distinguishes this comparison from others.
  void check_nodes_match(const std::string& topic, const std::vector<NodeFact>& facts);
  /// Returns the name of each rank's node: the name that the scheduler uses, else the host name.
  const std::vector<std::string>& nodes() const { return nodes_; }
  /// Collective: throws Error(kUsage) naming the ranks whose text differs from rank 0's.
  void check_ranks_match(const std::string& what, const std::string& text);
  /// Opens a checkpoint group in which a rank waits for the other ranks as long as they are alive,
  /// independently of comm.timeout.
  CheckpointGroup checkpoint_group();
  /// Opens a checkpoint group for another thread; all ranks must use it from such a thread. It has
  /// its own connection and does not need this session afterwards.
  CheckpointGroup open_background_group();
  /// Collective: sums numbers over all ranks, in place, in rank order, as one all-reduce in main
  /// memory. All ranks pass equally many numbers. To learn each rank's number, give each rank a
  /// slot of its own and zeros elsewhere. May be called in a step, at the cost of a wait for all
  /// ranks. Messages name `what`.
  void sum(std::span<double> numbers, const char* what);
  /// Collective: returns the signal on which all ranks stop; 0 for none. `signal` is the one that
  /// this rank has received. It calls sum() and is for decisions outside of a step; in a step flags
  /// go with the loss (StopAgreement::add_flags).
  int agree_on_stop(int signal);
  /// Adapts the time limits of waits for other ranks to the duration of a step: with comm.timeout
  /// "auto" they depend on the slowest step. Must not be called while a collective runs.
  void adapt_timeout(double seconds);
  /// Returns the current time limit of a collective.
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// Publishes what this rank does from now on, for the messages of ranks that wait for it.
  void show_phase(const std::string& what) { rendezvous_->board().show_phase(what); }
  ProgressBoard& board() { return rendezvous_->board(); }
  /// Raises the time limits to at least an hour from now on, because rank 0 works alone between
  /// host collectives (export, text samples), which takes longer than a step.
  void extend_timeouts_for_rank_0();
  /// Collective: disconnects all ranks in an orderly way.
  void close();
  /// Disconnects this rank after a failure. Rank 0 waits for at most a second until the others have
  /// left, because they may have failed too and read the reason from its store.
  void leave() noexcept { rendezvous_->leave(std::chrono::seconds(1)); }

 private:
  [[noreturn]] void refuse_together(const Error& error);
  void check_equal_configs(const TrainRequest& request);
  void choose_device(const TrainRequest& request);
  void set_timeout(std::chrono::milliseconds limit, bool include_programs);

  int rank_;
  int world_size_;
  /// Says whether comm.timeout is "auto" in the config.
  const bool has_auto_timeout_;
  std::chrono::milliseconds timeout_;
  double slowest_step_seconds_ = 0;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::vector<std::string> nodes_;
  /// The GPU. It is declared before the communicators, so that it is destroyed after them: they use
  /// its memory.
  std::unique_ptr<Gpu> gpu_;
  std::vector<std::string> gpu_names_;
  std::unique_ptr<OwnedCommunicators> communicators_;
};

}  // namespace ftrun
