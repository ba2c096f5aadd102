#include "base/error.h"
#include "comm/nccl_communicator.h"

namespace ftrun {

std::unique_ptr<Communicator> make_nccl_communicator(Communicator::Setup setup, Rendezvous&, int) {
  throw Error(ExitCode::kUnsupported,
              cat("group ", setup.name, " needs NCCL, but this ftrun was built without CUDA"),
              "build with -DFTRUN_CUDA=ON on a machine with a CUDA toolkit, or set device: cpu");
}

}  // namespace ftrun
