#include "training/session.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/launch_variables.h"
#include "base/log.h"
#include "base/machine_info.h"
#include "base/text.h"
#include "cluster/core_share.h"
#include "comm/nccl_environment.h"
#include "comm/open.h"
#include "engine/choose_gpu.h"
#include "engine/near_cores.h"
#include "program/step_plan.h"
#include "report/resume_check.h"
#include "training/stop_signal.h"

namespace ftrun {
namespace {

using std::chrono::milliseconds;

// The limits below apply if comm.timeout is "auto". The first is the time limit for connecting
// ranks and for exchanges of text.
constexpr milliseconds kRendezvousLimit = std::chrono::minutes(10);
/// The time limit of the first step, which sets up libraries and reads everything for the first
/// time.
constexpr milliseconds kFirstStepLimit = std::chrono::minutes(30);
/// The time limit of later steps is this multiple of the slowest step so far, because data and
/// disks may be slow at times; it is at least kMinLimit.
constexpr double kSlowestSteps = 10;
constexpr milliseconds kMinLimit = std::chrono::minutes(10);

bool has_auto_timeout(const Config& config) {
  return config.comm.timeout == 0;
}

milliseconds timeout_of(const Config& config, milliseconds default_timeout) {
  return has_auto_timeout(config) ? default_timeout : std::chrono::seconds(config.comm.timeout);
}

/// Returns the path of the rendezvous file. It is next to the run folder, because the run folder
/// itself is opened only when all ranks are connected.
std::string rendezvous_file(const std::string& output_dir) {
  std::string folder = std::filesystem::path(output_dir).lexically_normal().string();
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder + ".rendezvous";
}

/// Returns a name of the job that is the same on all its ranks and differs between jobs that run at
/// the same time. The name is needed if the user gives a token, because the same token may be given
/// to several jobs; the token of a rendezvous file belongs to one job. The fallback name is unique
/// because only one run at a time can hold an output_dir.
std::string job_name(const TrainRequest& request) {
  const LaunchEnvironment& launch = request.launch;
  if (!launch.job.empty() || launch.token.empty()) return launch.job;
  return cat("output_dir ", request.config.output_dir, ", model.path ", request.config.model.path);
}

std::unique_ptr<Rendezvous> open_rendezvous(const TrainRequest& request) {
  // NCCL's variables are set before the rendezvous starts threads, because threads may read the
  // environment at the same time.
  if (request.config.device == DeviceKind::kCuda) prepare_nccl_environment();
  const LaunchEnvironment& launch = request.launch;
  RendezvousOptions options;
  options.rank = launch.rank;
  options.world_size = launch.world_size;
  if (!launch.master_addr.empty()) options.address = launch.master_addr;
  options.port = launch.master_port;
  options.listen_fd = launch.store_fd;
  options.has_torchrun_store = launch.has_torchrun_store;
  options.attempt = launch.restarts;
  options.token = launch.token;
  options.rendezvous_file = rendezvous_file(request.config.output_dir);
  options.job = job_name(request);
  // Programs that this rank starts do not need the token, so it is removed from the environment.
  ::unsetenv(launch_variables::kToken);
  options.board_fd = launch.board_fd;
  options.local_rank = launch.local_rank;
  options.timeout = timeout_of(request.config, kRendezvousLimit);
  return Rendezvous::connect(options);
}

CommBackend backend_of(const CommConfig& comm) {
  switch (comm.backend) {
    case BackendChoice::kAuto:
      return CommBackend::kAuto;
    case BackendChoice::kGloo:
      return CommBackend::kGloo;
    case BackendChoice::kNccl:
      return CommBackend::kNccl;
  }
  return CommBackend::kAuto;
}

constexpr const char* kStartAlike =
    "start every rank with the same binary, config and model folder";

/// Lists the ranks whose text differs from rank 0's.
std::vector<std::string> find_differing_ranks(const std::vector<std::string>& texts) {
  std::vector<std::string> differing_ranks;
  for (size_t rank = 1; rank < texts.size(); ++rank)
    if (texts[rank] != texts[0]) differing_ranks.push_back(std::to_string(rank));
  return differing_ranks;
}

/// Returns one line for each key that differs: "\n train.steps: rank 0 has 5, rank 1 has 6".
std::string differing_keys_text(const std::string& first, const std::string& other,
                                const std::string& rank) {
  RunManifest a;
  RunManifest b;
  a.config = first;
  b.config = other;
  std::string lines;
  for (const ManifestDifference& key : compare_manifests(a, b))
    lines += cat("\n  ", key.field, ": rank 0 has ", key.earlier_value, ", rank ", rank, " has ",
                 key.current_value);
  return lines;
}

}  // namespace

Session::Session(const TrainRequest& request) : Session(request, open_rendezvous(request)) {}

Session::Session(const TrainRequest& request, std::unique_ptr<Rendezvous> rendezvous)
    : rank_(request.launch.rank),
      world_size_(request.launch.world_size),
      has_auto_timeout_(has_auto_timeout(request.config)),
      timeout_(timeout_of(request.config, kFirstStepLimit)),
      rendezvous_(std::move(rendezvous)) {
  const std::string& node = request.launch.node_name;
  nodes_ = all_gather_text("node", node.empty() ? rendezvous_->identity(rank_).host : node);
  if (world_size_ > 1) check_nodes_match("program", program_facts(request.build));
  check_equal_configs(request);
  choose_device(request);
}

void Session::choose_device(const TrainRequest& request) {
  if (request.config.device != DeviceKind::kCuda) return;
  run_on_all_ranks("opening the GPU", [&] { gpu_ = open_gpu(request.config, request.launch); });
  const std::vector<int> near_cores = bind_to_cores_near_device(gpu_->info().bus_id);
  if (!near_cores.empty())
    log_debug(cat("runs on ", near_cores.size(), " cores near GPU ", gpu_->info().bus_id));
  check_distinct_gpus(
      all_gather_text("GPU", gpu_label(gpu_->info(), rendezvous_->identity(rank_).host)));
  gpu_names_ = all_gather_text("GPU name", gpu_->info().name);
  const LaunchEnvironment& launch = request.launch;
  if (launch.local_size > 1 && launch.local_rank == 0)
    if (const std::string warning = shared_folder_warning(launch.local_size); !warning.empty())
      log_warning(warning);
  check_nodes_match("driver", driver_facts(gpu_->info().driver_version));
  check_ranks_match("attention kernels", gpu_->kernels().library_use().chosen);
}

void Session::open_communicators(const Config& config, const StateOptions& state) {
  CommOptions options;
  options.backend = backend_of(config.comm);
  options.timeout = timeout_;
  if (gpu_) options.device = gpu_->info().index;
  if (gpu_ && config.comm.deterministic)
    options.sum_blocks = [this](const BlockSum& sum) {
      gpu_->kernels().sum_blocks(sum.blocks, sum.ranks, sum.stride, sum.dtype, sum.count, sum.out,
                                 static_cast<DeviceStream>(sum.stream));
    };
  const GroupCollection groups = make_group_collection(state);
  communicators_ =
      std::make_unique<OwnedCommunicators>(*rendezvous_, groups.list, groups.model, options);
}

Session::~Session() = default;

std::vector<std::string> Session::all_gather_text(const std::string& what,
                                                  const std::string& text) {
  return rendezvous_->all_gather_text(what, text);
}

int Session::share_cores(const CoreLimit& core_limit) {
  const std::vector<std::string> texts = all_gather_text("cores", core_limit_text(core_limit));
  std::vector<RankCores> ranks;
  for (size_t rank = 0; rank < texts.size(); ++rank)
    ranks.push_back(
        {rendezvous_->identity(static_cast<int>(rank)).host, parse_core_limit(texts[rank])});
  return threads_of_rank(ranks, rank_);
}

void Session::run_on_all_ranks(const std::string& what, const std::function<void()>& work) {
  show_phase(what);
  if (world_size_ == 1) return work();
  ftrun::run_on_all_ranks(checkpoint_group(), what, [&] {
    work();
    return std::string();
  });
}

std::string Session::broadcast_text(const std::string& what,
                                    const std::function<std::string()>& text) {
  if (world_size_ == 1) return text();
  return ftrun::run_on_all_ranks(checkpoint_group(), what,
                                 [&] { return is_first() ? text() : std::string(); })[0];
}

bool Session::broadcast_decision(const std::string& what, const std::function<bool()>& question) {
  return broadcast_text(
             what, [&] { return question() ? std::string("yes") : std::string("no"); }) == "yes";
}

/// Compares hashes first, and exchanges the texts only if they differ.
void Session::check_nodes_match(const std::string& topic, const std::vector<NodeFact>& facts) {
  const std::string text = facts_text(facts);
  if (find_differing_ranks(all_gather_text(topic, hex64(xxh3(text.data(), text.size())))).empty())
    return;
  const std::string lines = differing_facts_text(all_gather_text(topic + " text", text), nodes_);
  refuse_together({ExitCode::kUsage, cat("the nodes differ:", lines),
                   "give every node the same ftrun, model, data and driver, at best from one "
                   "shared file system"});
}

void Session::check_ranks_match(const std::string& what, const std::string& text) {
  const std::vector<std::string> texts = all_gather_text("equal", text);
  const std::vector<std::string> differing_ranks = find_differing_ranks(texts);
  if (differing_ranks.empty()) return;
  refuse_together({ExitCode::kUsage,
                   cat(what, " differs from rank 0's on ", rank_list(differing_ranks)),
                   kStartAlike});
}

/// Throws the error on all ranks. Before that the ranks wait for each other, because rank 0 hosts
/// the store from which the others still read.
void Session::refuse_together(const Error& error) {
  try {
    all_gather_text("refused", "");
  } catch (const Error&) {
    // Rank 0 has ended already, so all ranks have read what they needed.
  }
  throw error;
}

/// Compares hashes first, and exchanges the configs, to find the keys that differ, only if the
/// hashes differ.
void Session::check_equal_configs(const TrainRequest& request) {
  const std::string hash = hex64(xxh3(request.config_json.data(), request.config_json.size()));
  const std::vector<std::string> differing_ranks =
      find_differing_ranks(all_gather_text("config", hash));
  if (differing_ranks.empty()) return;
  const std::vector<std::string> texts = all_gather_text("config text", request.config_json);
  const std::string& other = texts[static_cast<size_t>(std::stoi(differing_ranks.front()))];
  refuse_together({ExitCode::kUsage,
                   cat("the config differs from rank 0's on ", rank_list(differing_ranks), ":",
                       differing_keys_text(texts.front(), other, differing_ranks.front())),
                   kStartAlike});
}

CheckpointGroup Session::checkpoint_group() {
  return {rank_, world_size_, [this](const std::string& text) {
            return rendezvous_->all_gather_text("together", text, WaitPolicy::kWhileAlive);
          }};
}

CheckpointGroup Session::open_background_group() {
  return {rank_, world_size_,
          [rendezvous = std::shared_ptr<Rendezvous>(rendezvous_->make_connection_for_thread())](
              const std::string& text) {
            return rendezvous->all_gather_text("together", text, WaitPolicy::kWhileAlive);
          }};
}

void Session::sum(std::span<double> numbers, const char* what) {
  communicators()
      .host_world
      ->all_reduce(numbers.data(), static_cast<int64_t>(numbers.size()), DType::kF64,
                   ReduceOp::kSum, {what})
      .wait();
}

int Session::agree_on_stop(int signal) {
  RankFlags flags;
  add_stop_flag(signal, flags);
  sum(flags.counts(), "stop signals");
  return stop_signal_of(flags);
}

/// Sets the time limit of waits for all host groups and, with `include_programs`, for the groups of
/// the programs.
void Session::set_timeout(milliseconds limit, bool include_programs) {
  communicators().host_world->set_timeout(limit);
  communicators().host_model->set_timeout(limit);
  for (Communicator* group : communicators().group_communicators)
    if (include_programs) group->set_timeout(limit);
}

void Session::adapt_timeout(double seconds) {
  slowest_step_seconds_ = std::max(slowest_step_seconds_, seconds);
  rendezvous_->set_usual_wait(milliseconds(static_cast<int64_t>(slowest_step_seconds_ * 1e3)));
  if (!has_auto_timeout_ || !communicators_) return;
  const milliseconds limit(static_cast<int64_t>(slowest_step_seconds_ * kSlowestSteps * 1e3));
  if (std::max(limit, kMinLimit) == timeout_) return;
  timeout_ = std::max(limit, kMinLimit);
  set_timeout(timeout_, true);
}

void Session::extend_timeouts_for_rank_0() {
  set_timeout(std::max<milliseconds>(timeout_, std::chrono::hours(1)), gpu_ != nullptr);
}

void Session::close() {
  if (communicators_) communicators_->close();
  rendezvous_->shutdown();
}

}  // namespace ftrun
