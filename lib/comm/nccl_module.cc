#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "comm/nccl_communicator.h"
#include "comm/nccl_entry.h"

namespace ftrun {
namespace {

/// The module lies beside the library that holds this code, or in ../lib of a program that does.
std::string module_path() {
  Dl_info self{};
  ::dladdr(reinterpret_cast<void*>(&make_nccl_communicator), &self);
  const std::filesystem::path folder = std::filesystem::absolute(self.dli_fname).parent_path();
  const std::filesystem::path beside = folder / "libftrun_nccl.so";
  return (std::filesystem::exists(beside) ? beside : folder.parent_path() / "lib" / "libftrun_nccl.so").string();
}

NcclMakeEntry load_module() {
  const std::string path = module_path();
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    throw Error(ExitCode::kEnvironment, cat("NCCL cannot be loaded: ", ::dlerror()),
                "build ftrun anew on this machine; it needs CUDA 13 with NCCL 2 and the pinned torch wheel");
  const auto make = reinterpret_cast<NcclMakeEntry>(::dlsym(module, kNcclMakeEntry));
  if (make == nullptr)
    throw Error(ExitCode::kEnvironment, cat(path, " is not this version's NCCL library"), "build ftrun anew");
  return make;
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator::Setup setup, Rendezvous& rendezvous, int device) {
  static const NcclMakeEntry make = load_module();
  return std::unique_ptr<Communicator>(make(&setup, &rendezvous, device));
}

}  // namespace ftrun
