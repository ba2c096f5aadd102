#include "exec/session.h"

#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "comm/open.h"

namespace ftrun {
namespace {

std::chrono::milliseconds wait_of(const Config& config) {
  return std::chrono::seconds(config.comm.timeout);
}

std::unique_ptr<Rendezvous> meet(const TrainRequest& request) {
  const LaunchEnvironment& launch = request.launch;
  RendezvousOptions options;
  options.rank = launch.rank;
  options.world = launch.world;
  if (!launch.master_addr.empty()) options.address = launch.master_addr;
  options.port = launch.master_port;
  options.listen_fd = launch.store_fd;
  options.agent_store = launch.agent_store;
  options.attempt = launch.restart;
  options.timeout = wait_of(request.config);
  return Rendezvous::connect(options);
}

CommBackend backend_of(const CommConfig& comm) {
  switch (comm.backend) {
    case BackendChoice::kAuto: return CommBackend::kAuto;
    case BackendChoice::kGloo: return CommBackend::kGloo;
    case BackendChoice::kNccl: return CommBackend::kNccl;
  }
  return CommBackend::kAuto;
}

}  // namespace

Session::Session(const TrainRequest& request)
    : rank_(request.launch.rank), world_(request.launch.world), rendezvous_(meet(request)) {
  std::vector<int> everyone(static_cast<size_t>(world_));
  std::iota(everyone.begin(), everyone.end(), 0);
  CommOptions options;
  options.backend = backend_of(request.config.comm);
  options.timeout = wait_of(request.config);
  data_ = open_communicator(*rendezvous_, "data", everyone, options);
}

Session::~Session() = default;

std::vector<std::string> Session::exchange(const std::string& what, const std::string& text) {
  return rendezvous_->exchange_text(what, text);
}

void Session::together(const std::string& what, const std::function<void()>& work) {
  ftrun::together(checkpoint_group(), what, [&] {
    work();
    return std::string();
  });
}

void Session::require_equal(const std::string& what, const std::string& text) {
  const std::vector<std::string> all = exchange(what, text);
  std::vector<std::string> others;
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0]) others.push_back(std::to_string(rank));
  if (others.empty()) return;
  throw Error(ExitCode::kUsage, cat(what, " differs from rank 0's on rank ", join(others, ", ")),
              "start every rank with the same binary, config and model folder");
}

CheckpointGroup Session::checkpoint_group() {
  return {rank_, world_, [this](const std::string& text) { return exchange("together", text); }};
}

void Session::close() {
  data_->shutdown();
  rendezvous_->shutdown();
}

}  // namespace ftrun
