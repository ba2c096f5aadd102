#include "cluster/launch_environment.h"

#include <map>

#include "base/error.h"
#include "cluster/slurm_lists.h"

#include <catch2/catch.hpp>

using namespace ftrun;

namespace {
using Env = std::map<std::string, std::string>;

LaunchEnvironment detect(const Env& env) {
  return detect_launch([&env](const std::string& name) -> std::optional<std::string> {
    const auto found = env.find(name);
    if (found == env.end()) return std::nullopt;
    return found->second;
  });
}

std::string refusal(const Env& env) {
  try {
    detect(env);
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kUsage);
    return error.message();
  }
  return "(accepted)";
}

const Env kTorchrun = {{"RANK", "3"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"GROUP_RANK", "1"},
                       {"GROUP_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "n1"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                       {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Env kSlurm = {{"SLURM_JOB_ID", "70001"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_PROCID", "3"},
                    {"SLURM_STEP_NUM_TASKS", "4"},
                    {"SLURM_NTASKS", "9"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", "1"},
                    {"SLURMD_NODENAME", "n4"},
                    {"SLURM_STEP_NUM_NODES", "2"},
                    {"SLURM_STEP_NODELIST", "n[3-4]"},
                    {"SLURM_STEP_TASKS_PER_NODE", "3,1"}};

Env with_variable(Env env, const std::string& name, const std::string& value) {
  env[name] = value;
  return env;
}
Env without_variable(Env env, const std::string& name) {
  env.erase(name);
  return env;
}
}  // namespace

TEST_CASE("without a launcher a process is a job of its own on one machine") {
  const LaunchEnvironment launch = detect({{"HOME", "/root"}, {"MASTER_ADDR", "left over"}});
  REQUIRE(launch.kind == LaunchKind::kSingle);
  REQUIRE_FALSE(launch.is_rank());
  REQUIRE(launch.world_size == 1);
}

TEST_CASE(
    "torchrun's variables give rank, node and agent store; an agent's count of restarts is not the "
    "job's") {
  const LaunchEnvironment launch = detect(kTorchrun);
  REQUIRE(launch.kind == LaunchKind::kTorchrun);
  REQUIRE(launch.is_rank());
  REQUIRE(launch.rank == 3);
  REQUIRE(launch.world_size == 4);
  REQUIRE(launch.local_rank == 1);
  REQUIRE(launch.local_size == 2);
  REQUIRE(launch.node == 1);
  REQUIRE(launch.nodes == 2);
  REQUIRE(launch.master_addr == "n1");
  REQUIRE(launch.master_port == 29500);
  REQUIRE(launch.has_torchrun_store);
  REQUIRE(launch.restarts == 0);
}

TEST_CASE("torchrun inside a SLURM step is torchrun") {
  Env both = kSlurm;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  REQUIRE(detect(both).kind == LaunchKind::kTorchrun);
}

TEST_CASE("our supervisor's ranks are recognized by its variables") {
  const LaunchEnvironment launch = detect({{"FTRUN_SUPERVISOR", "123"},
                                           {"FTRUN_STORE_FD", "7"},
                                           {"RANK", "0"},
                                           {"WORLD_SIZE", "2"},
                                           {"LOCAL_RANK", "0"},
                                           {"LOCAL_WORLD_SIZE", "2"},
                                           {"MASTER_ADDR", "127.0.0.1"},
                                           {"MASTER_PORT", "4000"}});
  REQUIRE(launch.kind == LaunchKind::kSupervised);
  REQUIRE(launch.store_fd == 7);
  REQUIRE_FALSE(launch.has_torchrun_store);
}

TEST_CASE("in a SLURM step with uneven nodes the step's numbers override the job's") {
  const LaunchEnvironment launch = detect(kSlurm);
  REQUIRE(launch.kind == LaunchKind::kSlurm);
  REQUIRE(launch.rank == 3);
  REQUIRE(launch.world_size == 4);
  REQUIRE(launch.local_rank == 0);
  REQUIRE(launch.local_size == 1);
  REQUIRE(launch.node == 1);
  REQUIRE(launch.node_name == "n4");
  REQUIRE(launch.master_addr == "n3");
  // The port does not follow from the job's number, which anybody can see.
  REQUIRE(launch.master_port == 0);
  REQUIRE(launch.job == "slurm 70001.0");
}

TEST_CASE("a SLURM step on one node meets on the loopback interface") {
  Env env = with_variable(kSlurm, "SLURM_STEP_NUM_NODES", "1");
  env["SLURM_NODEID"] = "0";
  env["SLURM_LOCALID"] = "3";
  env["SLURM_STEP_NODELIST"] = "n3";
  env["SLURM_STEP_TASKS_PER_NODE"] = "4";
  REQUIRE(detect(env).master_addr == "127.0.0.1");
  REQUIRE(detect(env).local_size == 4);
  REQUIRE(detect(with_variable(env, "MASTER_ADDR", "10.0.0.1")).master_addr == "10.0.0.1");
}

TEST_CASE("a SLURM batch script is not a rank although it has SLURM_PROCID") {
  REQUIRE(detect(without_variable(kSlurm, "SLURM_STEP_ID")).kind == LaunchKind::kSingle);
  REQUIRE(detect(with_variable(kSlurm, "SLURM_STEP_ID", "4294967291")).kind == LaunchKind::kSingle);
}

TEST_CASE("MASTER_ADDR and MASTER_PORT override what SLURM suggests") {
  Env env = with_variable(kSlurm, "MASTER_ADDR", "10.0.0.1");
  env["MASTER_PORT"] = "5000";
  REQUIRE(detect(env).master_addr == "10.0.0.1");
  REQUIRE(detect(env).master_port == 5000);
}

TEST_CASE(
    "Open MPI on one machine needs no address: rank 0 chooses a port and publishes it under the "
    "job's name") {
  const Env env = {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                   {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"PMIX_NAMESPACE", "prterun-1@1"}};
  const LaunchEnvironment launch = detect(env);
  REQUIRE(launch.kind == LaunchKind::kOpenMpi);
  REQUIRE(launch.rank == 1);
  REQUIRE(launch.node == 0);
  REQUIRE(launch.master_addr == "127.0.0.1");
  REQUIRE(launch.master_port == 0);
  REQUIRE(launch.job == "prterun-1@1");
  REQUIRE(detect(with_variable(env, "MASTER_PORT", "4001")).master_port == 4001);
  REQUIRE(refusal(with_variable(env, "OMPI_COMM_WORLD_SIZE", "4")) ==
          "Open MPI started 4 ranks (OMPI_COMM_WORLD_SIZE=4) but MASTER_ADDR is not set");
}

TEST_CASE("PMI's variables are read as MPICH, Intel MPI and srun with pmi2 set them") {
  const LaunchEnvironment launch = detect({{"PMI_RANK", "2"},
                                           {"PMI_SIZE", "4"},
                                           {"MPI_LOCALRANKID", "0"},
                                           {"MPI_LOCALNRANKS", "2"},
                                           {"MASTER_ADDR", "h"},
                                           {"MASTER_PORT", "1"}});
  REQUIRE(launch.kind == LaunchKind::kPmi);
  REQUIRE(launch.rank == 2);
  REQUIRE(launch.local_size == 2);
}

TEST_CASE("RANK without LOCAL_RANK counts nodes") {
  const LaunchEnvironment launch = detect({{"RANK", "1"},
                                           {"WORLD_SIZE", "2"},
                                           {"NPROC_PER_NODE", "4"},
                                           {"MASTER_ADDR", "job-0"},
                                           {"MASTER_PORT", "23456"}});
  REQUIRE(launch.kind == LaunchKind::kNode);
  REQUIRE_FALSE(launch.is_rank());
  REQUIRE(launch.node == 1);
  REQUIRE(launch.nodes == 2);
  REQUIRE(launch.ranks_per_node == 4);
  REQUIRE(launch.master_addr == "job-0");
}

TEST_CASE("Kubeflow's PET variables describe nodes") {
  const Env env = {{"PET_NODE_RANK", "0"},
                   {"PET_NNODES", "2"},
                   {"PET_NPROC_PER_NODE", "auto"},
                   {"PET_MASTER_ADDR", "j-node-0-0.j"},
                   {"PET_MASTER_PORT", "29400"}};
  const LaunchEnvironment launch = detect(env);
  REQUIRE(launch.kind == LaunchKind::kNode);
  REQUIRE(launch.nodes == 2);
  REQUIRE_FALSE(launch.ranks_per_node.has_value());
  REQUIRE(detect(with_variable(env, "PET_NPROC_PER_NODE", "8")).ranks_per_node == 8);
}

TEST_CASE("contradictions name the variables and values that disagree") {
  REQUIRE(refusal(with_variable(kTorchrun, "RANK", "4")) ==
          "RANK=4 but WORLD_SIZE=4: it counts from 0, so it must be below 4");
  REQUIRE(refusal(with_variable(kTorchrun, "LOCAL_RANK", "2")) ==
          "LOCAL_RANK=2 but LOCAL_WORLD_SIZE=2: it counts from 0, so it must be below 2");
  REQUIRE(refusal(with_variable(kTorchrun, "LOCAL_WORLD_SIZE", "8")) ==
          "LOCAL_WORLD_SIZE=8 is more than WORLD_SIZE=4");
  REQUIRE(refusal(with_variable(kTorchrun, "RANK", "0")) == "LOCAL_RANK=1 is more than RANK=0");
  REQUIRE(refusal(with_variable(kTorchrun, "RANK", "two")) == "RANK=\"two\" is not a whole number");
  REQUIRE(refusal(with_variable(kTorchrun, "MASTER_PORT", "70000")) ==
          "MASTER_PORT=70000 is not a port (1 to 65535)");
  REQUIRE(refusal(without_variable(kTorchrun, "WORLD_SIZE")) ==
          "RANK is set but WORLD_SIZE is not");
  REQUIRE(refusal(without_variable(kTorchrun, "MASTER_ADDR")) ==
          "WORLD_SIZE is set but MASTER_ADDR is not");
  REQUIRE(refusal(with_variable(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "2(x3)")) ==
          "SLURM_STEP_TASKS_PER_NODE=2(x3) is 6 tasks but the step has 4");
  REQUIRE(refusal(with_variable(kSlurm, "SLURM_NODEID", "2")) ==
          "SLURM_NODEID=2 but SLURM_STEP_TASKS_PER_NODE=3,1 names 2 nodes");
  REQUIRE(refusal({{"WORLD_SIZE", "2"}}) == "WORLD_SIZE is set but RANK is not");
}

TEST_CASE("SLURM host lists expand with padding and several ranges") {
  using Hosts = std::vector<std::string>;
  REQUIRE(expand_hostlist("n1") == Hosts{"n1"});
  REQUIRE(expand_hostlist("n[1-3,07],gpu-[09-10]x") ==
          Hosts{"n1", "n2", "n3", "n07", "gpu-09x", "gpu-10x"});
  REQUIRE(expand_hostlist("r[1-2]n[0,4]").size() == 4);
}

TEST_CASE("SLURM tasks per node expand their repeats") {
  REQUIRE(expand_tasks_per_node("2(x3),1") == std::vector<int>{2, 2, 2, 1});
  REQUIRE(expand_tasks_per_node("8") == std::vector<int>{8});
}

TEST_CASE("malformed SLURM lists are quoted in an error, not used") {
  for (const char* text : {"", "n[1-", "n]1[", "n[3-1]", "n[a]", "n[]", "n[[1]]", "a,,b",
                           "n[1-99999999]", "n[0-65535][0-65535]"})
    REQUIRE_THROWS_WITH(expand_hostlist(text),
                        Catch::StartsWith(cat("cannot read SLURM's host list \"", text, "\"")));
  for (const char* text : {"", "2(x", "2(x)", "0", "-1", "2(x0)", "2,", "1(x99999999)", "2(y3)"})
    REQUIRE_THROWS_WITH(
        expand_tasks_per_node(text),
        Catch::StartsWith(cat("cannot read SLURM's tasks per node \"", text, "\"")));
}

TEST_CASE("a token that is short enough to be guessed is refused, a long one is the job's secret") {
  const Env env = {{"RANK", "0"},
                   {"WORLD_SIZE", "2"},
                   {"LOCAL_RANK", "0"},
                   {"MASTER_ADDR", "h"},
                   {"MASTER_PORT", "4000"}};
  REQUIRE(detect(env).token.empty());
  REQUIRE(detect(with_variable(env, "FTRUN_TOKEN", "0123456789abcdef")).token ==
          "0123456789abcdef");
  REQUIRE(refusal(with_variable(env, "FTRUN_TOKEN", "secret")) ==
          "FTRUN_TOKEN has 6 characters; it needs at least 16");
}

TEST_CASE("a rank of several says which variables define it, and how many others it waits for") {
  REQUIRE(launch_text(detect(kTorchrun)) ==
          "rank 3 of 4, by the variables of torchrun (RANK=3, WORLD_SIZE=4, LOCAL_RANK=1, "
          "LOCAL_WORLD_SIZE=2): it waits for the 3 others at n1:29500; "
          "unset them if no launcher has set them for this run");
  REQUIRE(launch_text(detect(kSlurm)) ==
          "rank 3 of 4, by the variables of SLURM (SLURM_JOB_ID=70001, SLURM_STEP_ID=0, "
          "SLURM_PROCID=3, SLURM_LOCALID=0, SLURM_STEP_NUM_TASKS=4): it "
          "waits for the 3 others at n3; unset them if no launcher has set them for this run");
  const Env mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "n1"},
                   {"MASTER_PORT", "29500"}};
  REQUIRE(launch_text(detect(mpi)) ==
          "rank 1 of 2, by the variables of Open MPI (OMPI_COMM_WORLD_RANK=1, "
          "OMPI_COMM_WORLD_SIZE=2): it waits for the other one at n1:29500; unset them if no "
          "launcher has set them for this run");
  const Env pmi = {
      {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}};
  REQUIRE(launch_text(detect(pmi)) ==
          "rank 0 of 2, by the variables of MPI (PMI) (PMI_RANK=0, PMI_SIZE=2): it waits for the "
          "other one at n1:29500; unset them if no launcher has set them for this run");
  const Env node = {
      {"RANK", "0"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}};
  REQUIRE(launch_text(detect(node)) ==
          "process 0 of 8, by the variables of a launcher (RANK=0, WORLD_SIZE=8): it waits for the "
          "7 others at n1:29500; unset them if no launcher has set them for this run");
}

TEST_CASE(
    "the first line of a single rank suggests to unset a launcher's variables that are left over") {
  REQUIRE(launch_text(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}})) ==
          "rank 0 of 1, by the variables of torchrun (RANK=0, WORLD_SIZE=1, LOCAL_RANK=0); unset "
          "them if no launcher has set them for this run");
}

TEST_CASE(
    "a process without a launcher's variables, and a rank of the supervisor, print no first line "
    "about them") {
  REQUIRE(launch_text(detect({})).empty());
  REQUIRE(launch_text(detect(with_variable(kTorchrun, "FTRUN_SUPERVISOR", "1"))).empty());
}

TEST_CASE("the job's secret is not shown") {
  const LaunchEnvironment launch =
      detect(with_variable(kTorchrun, "FTRUN_TOKEN", "0123456789abcdef0123"));
  REQUIRE(launch_text(launch).find("0123456789abcdef") == std::string::npos);
}
