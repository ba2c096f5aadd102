#include "training/start_request.h"

#include <unistd.h>

#include "base/checksum.h"
#include "base/error.h"
#include "base/log.h"
#include "cluster/peers.h"
#include "report/launch_record.h"
#include "report/run_folder.h"

namespace ftrun {
namespace {

/// Identifies the launch if torchrun's agent serves no store: by torchrun's own process, which
/// outlives its ranks, and by its restart count.
std::optional<TorchrunLaunch> launch_of_parent(const LaunchEnvironment& launch) {
  if (launch.kind != LaunchKind::kTorchrun) return std::nullopt;
  const std::string process = identity_text(read_process_identity(::getppid()));
  return TorchrunLaunch{hex64(xxh3(process.data(), process.size())), launch.torchrun_restarts};
}

}  // namespace

TrainRequest complete_request(TrainRequest request, std::optional<TorchrunLaunch> launch) {
  if (!launch) launch = launch_of_parent(request.launch);
  if (!launch) return request;
  request.torchrun_launch = launch->name;
  request.launch.restarts = launch->earlier_starts;
  if (request.launch.rank > 0 || launch->earlier_starts == 0) return request;  // rank 0 decides
  try {
    if (torchrun_wrote_manifest(RunPaths(request.config.output_dir).manifest(), launch->name))
      request.resume.resume_newest();
  } catch (const Error& error) {
    log_debug(error.what());  // opening the folder fails later, with the reason
  }
  return request;
}

std::string unique_swap_name(const TrainRequest& request) {
  const std::string key =
      cat(request.config.output_dir, "\n", request.launch.master_port, "\n", ::getppid());
  return hex64(xxh3(key.data(), key.size()));
}

}  // namespace ftrun
