#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/env_lookup.h"

namespace ftrun {

/// LaunchKind lists the ways in which this process may have been started.
enum class LaunchKind {
  kSingle,      // no launcher: a person on one machine
  kSupervised,  // ftrun's own supervisor: this process is a rank
  kTorchrun,    // torchrun, or any launcher that sets RANK, WORLD_SIZE and LOCAL_RANK
  kSlurm,       // a task of a SLURM step
  kOpenMpi,     // mpirun of Open MPI
  kPmi,         // MPICH, Intel MPI, srun --mpi=pmi2
  kNode,        // one process for each node, which starts the ranks (Kubeflow, DLC and others)
  kNodeRank,    // the same, but the process is the only rank of its node
};
/// Returns the launcher's name in messages: "torchrun", "SLURM", ...
std::string_view launch_name(LaunchKind kind);
/// Returns the reason why ftrun cannot restart ranks that a launcher of this kind has started.
std::string no_restart_reason(LaunchKind kind);

/// LaunchEnvironment holds what the environment variables say about this process. With kSingle and
/// kNode the variables do not make the process a rank: it starts the local ranks itself, or is the
/// only rank.
struct LaunchEnvironment {
  LaunchKind kind = LaunchKind::kSingle;
  /// The variables from which this was read, "RANK=1, WORLD_SIZE=4, LOCAL_RANK=1"; "" for kSingle.
  /// They may be left over from an earlier command of the shell.
  std::string variables;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  /// The number of ranks on this node; 0 if the launcher does not say it.
  int local_size = 1;
  int node = 0;
  int nodes = 1;
  /// The scheduler's name of this node; "" if it gives none.
  std::string node_name;
  /// The address at which rank 0 serves the rendezvous; "" and 0 for a single process. Port 0 with
  /// several ranks: rank 0 chooses the port and records it in a file, or the port is computed from
  /// the token.
  std::string master_addr;
  int master_port = 0;
  /// The job's secret (FTRUN_TOKEN), "" if there is none.
  std::string token;
  /// The launcher's name of the job, "" if it gives none.
  std::string job;
  /// Says whether torchrun's agent serves the store already, so that rank 0 must join as a client.
  bool has_torchrun_store = false;
  /// The number of times that torchrun's agent has restarted its workers.
  int torchrun_restarts = 0;
  /// The number of times that the launcher has restarted the job, if it counts that for all ranks
  /// (torchrun's agents each count their own workers').
  int restarts = 0;
  /// The bound socket that rank 0 inherits from ftrun's supervisor; -1 for none.
  int store_fd = -1;
  /// The memory in which the ranks of the supervisor show their state; -1 for none.
  int board_fd = -1;
  /// The number of ranks to start on each node (kNode), if the launcher says it.
  std::optional<int> ranks_per_node;

  bool is_rank() const { return kind != LaunchKind::kSingle && kind != LaunchKind::kNode; }
};

/// Returns the first line to print in a process that is a rank because of its environment
/// variables: "rank 1 of 4, by the variables of torchrun (RANK=1, ...): it waits for the 3 others
/// at 10.0.0.1:29500; unset them ...". Returns "" if there are no such variables, or if ftrun's
/// supervisor has set them.
std::string launch_text(const LaunchEnvironment& launch);

/// Reads the launcher's variables; a pure function of `env`. It looks for launchers in this order:
/// ftrun's supervisor, torchrun, SLURM step, Open MPI, PMI, node-level launchers, none. Throws
/// Error(kUsage) if variables contradict each other, naming them with their values.
LaunchEnvironment detect_launch(const EnvLookup& env);

}  // namespace ftrun
