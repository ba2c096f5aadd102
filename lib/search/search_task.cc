#include "search/search_task.h"

#include <algorithm>

namespace ftrun {

int64_t device_memory_budget(const Machine& machine, int64_t requested_bytes, int64_t ranks) {
  if (requested_bytes > 0) return requested_bytes;
  const auto memory = static_cast<int64_t>(machine.memory_capacity);
  return machine.has_gpus ? memory : memory * machine.devices / std::max<int64_t>(1, ranks);
}

int64_t device_memory_budget(const SearchTask& task, int64_t ranks) {
  return device_memory_budget(task.machine, task.device_memory, ranks);
}

int64_t host_memory_budget(const Machine& machine, int64_t requested_bytes, int64_t ranks) {
  if (requested_bytes > 0) return requested_bytes;
  return static_cast<int64_t>(machine.host_memory_capacity) / std::max<int64_t>(1, ranks);
}

int64_t host_memory_budget(const SearchTask& task, int64_t ranks) {
  return host_memory_budget(task.machine, task.host_memory, ranks);
}

int64_t missing_bytes(const SearchTask& task, const MemoryNeed& memory, int64_t ranks) {
  const auto beyond = [](int64_t needed, int64_t budget) {
    return budget == 0 ? 0 : std::max<int64_t>(0, needed - budget);
  };
  return beyond(memory.device_bytes, device_memory_budget(task, ranks)) +
         beyond(memory.host_bytes, host_memory_budget(task, ranks));
}

bool fits_memory(const SearchTask& task, const MemoryNeed& memory, int64_t ranks) {
  return missing_bytes(task, memory, ranks) == 0;
}

}  // namespace ftrun
