#include "cluster/launch_environment.h"

#include <charconv>
#include <numeric>

#include "base/error.h"
#include "base/launch_variables.h"
#include "base/text.h"
#include "cluster/slurm_lists.h"

namespace ftrun {
namespace {

[[noreturn]] void throw_contradiction(const std::string& message) {
  throw Error(ExitCode::kUsage, message, "correct or unset the launcher's variables");
}

/// Variables gives typed access to environment variables; its error messages quote them.
class Variables {
 public:
  explicit Variables(const EnvLookup& env) : env_(env) {}

  std::optional<std::string> text(const std::string& name) const {
    auto value = env_(name);
    if (value && value->empty()) value.reset();
    return value;
  }
  bool has(const std::string& name) const { return text(name).has_value(); }

  std::optional<int> number(const std::string& name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int parsed = 0;
    const char* end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, parsed);
    if (error != std::errc() || stop != end || parsed < 0)
      throw_contradiction(cat(name, "=\"", *value, "\" is not a whole number"));
    return parsed;
  }
  int number(const std::string& name, int fallback) const {
    return number(name).value_or(fallback);
  }
  int required_number(const std::string& name, std::string_view because_of) const {
    const auto value = number(name);
    if (!value) throw_contradiction(cat(because_of, " is set but ", name, " is not"));
    return *value;
  }
  std::string required_text(const std::string& name, std::string_view because_of) const {
    auto value = text(name);
    if (!value) throw_contradiction(cat(because_of, " is set but ", name, " is not"));
    return *value;
  }
  /// Returns the value of SLURM's variable for the step, or of the one for the whole job if that is
  /// not set.
  std::string text_of_step_or_job(const std::string& step, const std::string& job) const {
    const auto value = text(step);
    return value ? *value : required_text(job, "SLURM_STEP_ID");
  }

 private:
  const EnvLookup& env_;
};

void check_below(int value, const char* name, int limit, const char* limit_name) {
  if (value >= limit)
    throw_contradiction(cat(name, "=", value, " but ", limit_name, "=", limit,
                            ": it counts from 0, so it must be below ", limit));
}

void check_port(int port, const std::string& name) {
  if (port < 1 || port > 65535)
    throw_contradiction(cat(name, "=", port, " is not a port (1 to 65535)"));
}

void read_master(const Variables& env, LaunchEnvironment& launch, std::string_view because_of) {
  launch.master_addr = env.required_text("MASTER_ADDR", because_of);
  launch.master_port = env.required_number("MASTER_PORT", because_of);
  check_port(launch.master_port, "MASTER_PORT");
}

LaunchEnvironment from_torchrun(const Variables& env) {
  LaunchEnvironment launch;
  launch.kind =
      env.has(launch_variables::kSupervisor) ? LaunchKind::kSupervised : LaunchKind::kTorchrun;
  launch.rank = env.required_number("RANK", "LOCAL_RANK");
  launch.world_size = env.required_number("WORLD_SIZE", "RANK");
  launch.local_rank = env.required_number("LOCAL_RANK", "RANK");
  launch.local_size = env.number("LOCAL_WORLD_SIZE", 0);
  launch.node = env.number("GROUP_RANK", 0);
  launch.nodes = env.number("GROUP_WORLD_SIZE", 1);
  launch.restarts = env.number(launch_variables::kRestart, 0);
  launch.torchrun_restarts = env.number("TORCHELASTIC_RESTART_COUNT", 0);
  launch.has_torchrun_store = env.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.store_fd = env.number(launch_variables::kStoreFd, -1);
  launch.board_fd = env.number(launch_variables::kBoardFd, -1);
  check_below(launch.rank, "RANK", launch.world_size, "WORLD_SIZE");
  if (launch.local_size > 0) {
    check_below(launch.local_rank, "LOCAL_RANK", launch.local_size, "LOCAL_WORLD_SIZE");
    if (launch.local_size > launch.world_size)
      throw_contradiction(cat("LOCAL_WORLD_SIZE=", launch.local_size,
                              " is more than WORLD_SIZE=", launch.world_size));
  }
  if (launch.local_rank > launch.rank)
    throw_contradiction(cat("LOCAL_RANK=", launch.local_rank, " is more than RANK=", launch.rank));
  if (launch.world_size > 1 || launch.has_torchrun_store) read_master(env, launch, "WORLD_SIZE");
  return launch;
}

/// Returns the number of ranks on this task's node, after checking that it agrees with the other
/// variables.
int slurm_local_size(const Variables& env, const LaunchEnvironment& launch) {
  const std::string text =
      env.text_of_step_or_job("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  const std::vector<int> tasks = expand_tasks_per_node(text);
  const int total = std::accumulate(tasks.begin(), tasks.end(), 0);
  if (total != launch.world_size)
    throw_contradiction(cat("SLURM_STEP_TASKS_PER_NODE=", text, " is ", total,
                            " tasks but the step has ", launch.world_size));
  if (launch.node >= static_cast<int>(tasks.size()))
    throw_contradiction(cat("SLURM_NODEID=", launch.node, " but SLURM_STEP_TASKS_PER_NODE=", text,
                            " names ", tasks.size(), " nodes"));
  return tasks[static_cast<size_t>(launch.node)];
}

/// Returns the address at which rank 0 serves the rendezvous. A step on one node uses 127.0.0.1,
/// because the node's host name may not resolve there.
std::string slurm_master_addr(const Variables& env, const LaunchEnvironment& launch) {
  if (const auto given = env.text("MASTER_ADDR")) return *given;
  if (launch.nodes == 1) return "127.0.0.1";
  return expand_hostlist(env.text_of_step_or_job("SLURM_STEP_NODELIST", "SLURM_NODELIST")).front();
}

/// Returns a name of the job made of numbers that every task of a step knows and that no other step
/// has.
std::string slurm_job_name(const Variables& env) {
  return cat("slurm ", env.number("SLURM_JOB_ID", 0), ".", env.number("SLURM_STEP_ID", 0));
}

/// Returns the port in MASTER_PORT, or 0 if it is not set. The port is not computed from the job's
/// number, because others could guess it.
int read_master_port(const Variables& env) {
  if (!env.has("MASTER_PORT")) return 0;
  const int port = env.number("MASTER_PORT", 0);
  check_port(port, "MASTER_PORT");
  return port;
}

LaunchEnvironment from_slurm(const Variables& env) {
  LaunchEnvironment launch;
  launch.kind = LaunchKind::kSlurm;
  launch.rank = env.required_number("SLURM_PROCID", "SLURM_STEP_ID");
  launch.world_size = env.number("SLURM_STEP_NUM_TASKS", env.number("SLURM_NTASKS", 1));
  launch.local_rank = env.required_number("SLURM_LOCALID", "SLURM_STEP_ID");
  launch.node = env.number("SLURM_NODEID", 0);
  launch.node_name = env.text("SLURMD_NODENAME").value_or("");
  launch.nodes = env.number("SLURM_STEP_NUM_NODES", env.number("SLURM_NNODES", 1));
  launch.restarts = env.number("SLURM_RESTART_COUNT", 0);
  check_below(launch.rank, "SLURM_PROCID", launch.world_size, "SLURM_STEP_NUM_TASKS");
  if (launch.world_size == 1) return launch;
  launch.local_size = slurm_local_size(env, launch);
  check_below(launch.local_rank, "SLURM_LOCALID", launch.local_size, "tasks on this node");
  launch.master_addr = slurm_master_addr(env, launch);
  launch.master_port = read_master_port(env);
  launch.job = slurm_job_name(env);
  return launch;
}

/// Reads the address of the rendezvous, which MPI launchers do not give: MASTER_ADDR and
/// MASTER_PORT or, if all ranks share this machine, the loopback interface and a port that rank 0
/// chooses.
void read_mpi_master(const Variables& env, LaunchEnvironment& launch, const char* size_variable,
                     const char* job_variable) {
  if (launch.world_size == 1) return;
  if (env.has("MASTER_ADDR")) return read_master(env, launch, "MASTER_ADDR");
  const auto job = env.text(job_variable);
  if (launch.local_size != launch.world_size || !job) {
    throw Error(ExitCode::kUsage,
                cat(launch_name(launch.kind), " started ", launch.world_size, " ranks (",
                    size_variable, "=", launch.world_size, ") but MASTER_ADDR is not set"),
                cat("pass the first host and a free port to every rank, for example: mpirun -x "
                    "MASTER_ADDR=host1 -x MASTER_PORT=29500; or, if no launcher has started this "
                    "process, unset its variables"));
  }
  launch.master_addr = "127.0.0.1";
  launch.master_port = read_master_port(env);
  launch.job = *job;
}

struct MpiVariableNames {
  LaunchKind kind;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job;
};
// OMPI_COMM_WORLD_NODE_RANK is not read: it is the rank within the node, not the node's number.
constexpr MpiVariableNames kOpenMpi = {LaunchKind::kOpenMpi,         "OMPI_COMM_WORLD_RANK",
                                       "OMPI_COMM_WORLD_SIZE",       "OMPI_COMM_WORLD_LOCAL_RANK",
                                       "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"};
constexpr MpiVariableNames kPmi = {LaunchKind::kPmi,  "PMI_RANK",        "PMI_SIZE",
                                   "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"};

LaunchEnvironment from_mpi(const Variables& env, const MpiVariableNames& names) {
  LaunchEnvironment launch;
  launch.kind = names.kind;
  launch.rank = env.required_number(names.rank, names.rank);
  launch.world_size = env.required_number(names.size, names.rank);
  launch.local_rank = env.number(names.local_rank, 0);
  launch.local_size = env.number(names.local_size, launch.world_size == 1 ? 1 : 0);
  check_below(launch.rank, names.rank, launch.world_size, names.size);
  if (launch.local_size > 0)
    check_below(launch.local_rank, names.local_rank, launch.local_size, names.local_size);
  read_mpi_master(env, launch, names.size, names.job);
  return launch;
}

std::optional<int> ranks_per_node(const Variables& env, const std::string& name) {
  const auto value = env.text(name);
  if (!value || *value == "auto" || *value == "cpu" || *value == "gpu") return std::nullopt;
  const auto count = env.number(name);
  if (*count < 1) throw_contradiction(cat(name, "=", *count, ": a node needs at least one rank"));
  return count;
}

LaunchEnvironment from_kubeflow(const Variables& env) {
  LaunchEnvironment launch;
  launch.kind = LaunchKind::kNode;
  launch.node = env.number("PET_NODE_RANK", 0);
  launch.nodes = env.required_number("PET_NNODES", "PET_NODE_RANK or PET_MASTER_ADDR");
  launch.ranks_per_node = ranks_per_node(env, "PET_NPROC_PER_NODE");
  check_below(launch.node, "PET_NODE_RANK", launch.nodes, "PET_NNODES");
  if (launch.nodes == 1) return launch;
  launch.master_addr = env.required_text("PET_MASTER_ADDR", "PET_NNODES");
  launch.master_port = env.required_number("PET_MASTER_PORT", "PET_NNODES");
  check_port(launch.master_port, "PET_MASTER_PORT");
  return launch;
}

/// Reads RANK and WORLD_SIZE. Without LOCAL_RANK they count nodes, not ranks.
LaunchEnvironment from_node_variables(const Variables& env) {
  LaunchEnvironment launch;
  launch.kind = LaunchKind::kNode;
  launch.node = env.required_number("RANK", "WORLD_SIZE");
  launch.nodes = env.required_number("WORLD_SIZE", "RANK");
  launch.ranks_per_node = ranks_per_node(env, "NPROC_PER_NODE");
  check_below(launch.node, "RANK", launch.nodes, "WORLD_SIZE");
  if (launch.nodes > 1) read_master(env, launch, "WORLD_SIZE");
  return launch;
}

/// Returns whether this process is a task of a SLURM step. A batch script has SLURM_PROCID=0 and
/// SLURM_NTASKS too, but only a real step has SLURM_STEP_ID below 0xfffffff0: the numbers from
/// there on are the batch and interactive pseudo-steps.
bool in_slurm_step(const Variables& env) {
  const auto step = env.text("SLURM_STEP_ID");
  if (!step || !env.has("SLURM_PROCID")) return false;
  return step->size() < 10 || (step->size() == 10 && *step < "4294967280");
}

}  // namespace

std::string_view launch_name(LaunchKind kind) {
  switch (kind) {
    case LaunchKind::kSingle:
      return "single machine";
    case LaunchKind::kSupervised:
      return "ftrun";
    case LaunchKind::kTorchrun:
      return "torchrun";
    case LaunchKind::kSlurm:
      return "SLURM";
    case LaunchKind::kOpenMpi:
      return "Open MPI";
    case LaunchKind::kPmi:
      return "MPI (PMI)";
    case LaunchKind::kNode:
    case LaunchKind::kNodeRank:
      return "node launcher";
  }
  return "?";
}

std::string no_restart_reason(LaunchKind kind) {
  return cat(launch_name(kind),
             " starts the ranks, and ftrun restarts only ranks that it has started itself");
}

namespace {

/// The length below which a token is rejected, because it could be guessed by trying.
constexpr size_t kShortestToken = 16;

std::string token_of(const Variables& env) {
  const std::string token = env.text(launch_variables::kToken).value_or("");
  if (!token.empty() && token.size() < kShortestToken)
    throw Error(
        ExitCode::kUsage,
        cat("FTRUN_TOKEN has ", token.size(), " characters; it needs at least ", kShortestToken),
        "make one for each job: FTRUN_TOKEN=$(openssl rand -hex 32)");
  return token;
}

/// Lists those variables that identify a launch of this kind and that are set.
std::string variables_of(LaunchKind kind, const Variables& env) {
  std::vector<std::string> names;
  switch (kind) {
    case LaunchKind::kSingle:
      return "";
    case LaunchKind::kSupervised:
    case LaunchKind::kTorchrun:
      names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
      break;
    case LaunchKind::kSlurm:
      names = {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID",
               env.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS"};
      break;
    case LaunchKind::kOpenMpi:
      names = {kOpenMpi.rank, kOpenMpi.size, kOpenMpi.local_rank, kOpenMpi.local_size};
      break;
    case LaunchKind::kPmi:
      names = {kPmi.rank, kPmi.size, kPmi.local_rank, kPmi.local_size};
      break;
    case LaunchKind::kNode:
    case LaunchKind::kNodeRank:
      names = {"PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "RANK", "WORLD_SIZE"};
      break;
  }
  std::vector<std::string> set;
  for (const std::string& name : names)
    if (const auto value = env.text(name)) set.push_back(cat(name, "=", *value));
  return join(set, ", ");
}

LaunchEnvironment read_launcher(const Variables& env) {
  if (env.has("LOCAL_RANK")) return from_torchrun(env);
  if (in_slurm_step(env)) return from_slurm(env);
  if (env.has(kOpenMpi.rank)) return from_mpi(env, kOpenMpi);
  if (env.has(kPmi.rank)) return from_mpi(env, kPmi);
  if (env.has("PET_NODE_RANK") || env.has("PET_MASTER_ADDR")) return from_kubeflow(env);
  if (env.has("RANK") || env.has("WORLD_SIZE")) return from_node_variables(env);
  return {};
}

}  // namespace

LaunchEnvironment detect_launch(const EnvLookup& lookup) {
  const Variables env(lookup);
  LaunchEnvironment launch = read_launcher(env);
  launch.variables = variables_of(launch.kind, env);
  launch.token = token_of(env);
  return launch;
}

std::string launch_text(const LaunchEnvironment& launch) {
  const bool is_node = launch.kind == LaunchKind::kNode;
  if (launch.kind == LaunchKind::kSingle || launch.kind == LaunchKind::kSupervised) return "";
  const int index = is_node ? launch.node : launch.rank,
            count = is_node ? launch.nodes : launch.world_size;
  const std::string who =
      cat(is_node ? "process " : "rank ", index, " of ", count, ", by the variables of ",
          is_node ? "a launcher" : launch_name(launch.kind), " (", launch.variables, ")");
  const std::string address = launch.master_port > 0
                                  ? cat(launch.master_addr, ":", launch.master_port)
                                  : launch.master_addr;
  const std::string waits =
      count == 1
          ? ""
          : cat(": it waits for ", count == 2 ? "the other one" : cat("the ", count - 1, " others"),
                " at ", address);
  return cat(who, waits, "; unset them if no launcher has set them for this run");
}

}  // namespace ftrun
