#include "search/search_task.h"

#include <algorithm>

namespace ftrun {

int64_t device_budget(const SearchTask& task, int64_t ranks) {
  if (task.device_memory > 0) return task.device_memory;
  const auto memory = static_cast<int64_t>(task.machine.memory);
  return task.machine.has_gpus ? memory
                               : memory * task.machine.devices / std::max<int64_t>(1, ranks);
}

bool fits(const SearchTask& task, const RankMemory& memory, int64_t ranks) {
  const auto within = [](int64_t needed, int64_t budget) {
    return budget == 0 || needed <= budget;
  };
  return within(memory.device, device_budget(task, ranks)) && within(memory.host, task.host_memory);
}

}  // namespace ftrun
