#include <dlfcn.h>

#include <string>

#include "base/error.h"
#include "base/installed_module.h"
#include "base/open_library.h"
#include "comm/nccl_communicator.h"
#include "comm/nccl_entry.h"

namespace ftrun {
namespace {

NcclMakeEntry load_nccl_module() {
  const std::string path = installed_module_path(
      reinterpret_cast<const void*>(&make_nccl_communicator), "libftrun_nccl.so");
  const auto [module, why] = open_library(path, RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    throw Error(ExitCode::kEnvironment, cat("NCCL cannot be loaded: ", why),
                "build ftrun again on this machine; it needs CUDA 13 with NCCL 2 and the pinned "
                "torch wheel");
  const auto make = reinterpret_cast<NcclMakeEntry>(::dlsym(module, kNcclMakeEntry));
  if (make == nullptr)
    throw Error(ExitCode::kEnvironment, cat(path, " is not this version's NCCL library"),
                "install or build ftrun again, all parts of one version");
  return make;
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator::Setup setup,
                                                     Rendezvous& rendezvous, int device) {
  static const NcclMakeEntry make = load_nccl_module();
  return std::unique_ptr<Communicator>(make(&setup, &rendezvous, device));
}

}  // namespace ftrun
