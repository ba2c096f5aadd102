#include "training/training_error.h"

#include "base/as_error.h"
#include "base/limit_remedies.h"
#include "comm/out_of_memory.h"

namespace ftrun {

Error training_error(const std::exception& exception) {
  if (!is_out_of_memory(exception)) return as_error(exception);
  return {ExitCode::kEnvironment, "out of memory", less_memory_remedy()};
}

}  // namespace ftrun
