#include "comm/nccl_environment.h"

#include <cstdlib>

namespace ftrun {

void prepare_nccl_environment() {
  // Whoever names algorithms means it.
  if (std::getenv("NCCL_ALGO") == nullptr) ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  ::setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

}  // namespace ftrun
