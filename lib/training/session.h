#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/processors.h"
#include "checkpoint/checkpoint_group.h"
#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "engine/gpu.h"
#include "engine/rank_groups.h"
#include "plan/train_request.h"
#include "program/state_options.h"
#include "training/node_facts.h"

namespace ftrun {

/// This rank among the others: rendezvous, its device, the communicators, texts exchanged.
class Session {
 public:
  /// Collective. Error(kEnvironment) for a port in use, Error(kPeerLost) for ranks that never come,
  /// Error(kUsage) naming the ranks that were started with another build or config, or that share a
  /// GPU, and what open_gpu() throws.
  explicit Session(const TrainRequest& request);
  /// Collective: the same among ranks that have met at `rendezvous`.
  Session(const TrainRequest& request, std::unique_ptr<Rendezvous> rendezvous);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int world() const { return world_; }
  bool is_first() const { return rank_ == 0; }
  /// The launch of ranks that torchrun started.
  const std::optional<AgentLaunch>& agent_launch() const { return rendezvous_->agent_launch(); }
  /// Collective: the threads that each rank computes on, by what all of them may use of their
  /// machines (cluster/processor_share).
  int share_processors(const ProcessorLimit& own);
  /// Null when the ranks compute on processors. All ranks compute on the same kind of device.
  Gpu* gpu() { return gpu_.get(); }
  /// The GPU of every rank by name; empty on processors.
  const std::vector<std::string>& gpu_names() const { return gpu_names_; }
  /// Collective: opens the groups of this rank's programs, which groups() then gives.
  void open_groups(const Config& config, const StateOptions& state);
  const RankGroups& groups() const { return groups_->groups(); }

  /// Collective: the texts of all ranks, in rank order.
  std::vector<std::string> exchange(const std::string& what, const std::string& text);
  /// Collective: `work` on this rank; an Error of any rank is thrown on all, its message after
  /// `what` ("reading the data") and the rank.
  void together(const std::string& what, const std::function<void()>& work);
  /// Collective: what rank 0 says, on every rank; an Error of it is thrown on all. The others wait
  /// as long as it lives.
  std::string first_tells(const std::string& what, const std::function<std::string()>& text);
  /// Collective: rank 0's answer to a question, in the same way.
  bool first_decides(const std::string& what, const std::function<bool()>& question);
  /// Collective: Error(kUsage) naming each node that differs from rank 0's, and in what; `topic`
  /// distinguishes one such comparison from another.
  void require_same(const std::string& topic, const std::vector<NodeFact>& facts);
  /// The name of each rank's node: the scheduler's, else the host's.
  const std::vector<std::string>& nodes() const { return nodes_; }
  /// Collective: Error(kUsage) naming the ranks whose text differs from rank 0's.
  void require_equal(const std::string& what, const std::string& text);
  /// A rank waits there for the others' work as long as they live, whatever comm.timeout says.
  CheckpointGroup checkpoint_group();
  /// Opens a checkpoint group for another thread: all ranks call its gathers from such. The group
  /// is opened now, and does not need this session any more.
  CheckpointGroup background_group();
  /// Collective: sums over all ranks, in place; `what` for messages.
  void sum(std::span<double> numbers, const char* what);
  /// Collective: what the ranks' stop signals (0 for none) come to.
  int vote_to_stop(int signal);
  /// A step of the run took so long: with comm.timeout auto, what waits for other ranks may take
  /// follows from the slowest. Not while a collective runs.
  void note_step(double seconds);
  /// The longest wait of a collective now.
  std::chrono::milliseconds longest_wait() const { return timeout_; }
  /// Shows what this rank does from now on, to whoever would wait for it.
  void show_phase(const std::string& what) { rendezvous_->board().show_phase(what); }
  ProgressBoard& board() { return rendezvous_->board(); }
  /// Allows rank 0, from now on, to work alone between collectives of the host (export, text): what
  /// comm.timeout was chosen for does not hold for them.
  void allow_work_of_one_rank();
  /// Collective: lets everyone leave in order.
  void close();
  /// Leaves the job as a rank that fails: the others may have failed with it and read why from rank
  /// 0's store.
  void leave() noexcept { rendezvous_->leave(std::chrono::seconds(1)); }

 private:
  [[noreturn]] void refuse_together(const Error& error);
  void require_equal_configs(const TrainRequest& request);
  void choose_device(const TrainRequest& request);
  void set_timeout(std::chrono::milliseconds limit, bool devices);

  int rank_;
  int world_;
  /// comm.timeout is auto.
  const bool auto_timeout_;
  std::chrono::milliseconds timeout_;
  double slowest_step_ = 0;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::vector<std::string> nodes_;
  /// The GPU stands before the groups, which move its memory.
  std::unique_ptr<Gpu> gpu_;
  std::vector<std::string> gpu_names_;
  std::unique_ptr<OpenGroups> groups_;
};

}  // namespace ftrun
