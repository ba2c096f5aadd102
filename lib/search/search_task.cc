#include "search/search_task.h"

#include <algorithm>

namespace ftrun {

int64_t device_budget(const SearchTask& task, int64_t ranks) {
  if (task.device_memory > 0) return task.device_memory;
  const auto memory = static_cast<int64_t>(task.machine.memory);
  return task.machine.has_gpus ? memory
                               : memory * task.machine.devices / std::max<int64_t>(1, ranks);
}

int64_t host_budget(const SearchTask& task, int64_t ranks) {
  if (task.host_memory > 0) return task.host_memory;
  return static_cast<int64_t>(task.machine.host_memory_capacity) / std::max<int64_t>(1, ranks);
}

int64_t missing_bytes(const SearchTask& task, const MemoryNeed& memory, int64_t ranks) {
  const auto beyond = [](int64_t needed, int64_t budget) {
    return budget == 0 ? 0 : std::max<int64_t>(0, needed - budget);
  };
  return beyond(memory.device, device_budget(task, ranks)) +
         beyond(memory.host, host_budget(task, ranks));
}

bool fits_memory(const SearchTask& task, const MemoryNeed& memory, int64_t ranks) {
  return missing_bytes(task, memory, ranks) == 0;
}

}  // namespace ftrun
