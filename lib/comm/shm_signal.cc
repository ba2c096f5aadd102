#include "comm/shm_signal.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace ftrun {
namespace {

constexpr timespec kNap = {.tv_sec = 0, .tv_nsec = 50'000'000};

uint32_t* word_of(std::atomic<uint32_t>& value) {
  return reinterpret_cast<uint32_t*>(&value);
}

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Polls for a few microseconds, the duration of a barrier at which both ranks have arrived.
bool poll_briefly(const ShmSignal& signal, uint32_t target) {
  for (int i = 0; i < 100; ++i) {
    if (signal.has_reached(target)) return true;
    pause_core();
  }
  return false;
}

}  // namespace

void ShmSignal::raise_to(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  // A waiter increments sleepers_ before its last look at the value, so either it sees the new
  // value or this thread sees the waiter.
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake_all();
}

void ShmSignal::wake_all() {
  ::syscall(SYS_futex, word_of(value_), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool ShmSignal::wait(uint32_t target, std::chrono::microseconds spin,
                     const std::function<bool()>& check) {
  if (has_reached(target)) return true;
  const auto spin_end = std::chrono::steady_clock::now() + spin;
  while (spin.count() > 0 && std::chrono::steady_clock::now() < spin_end) {
    if (poll_briefly(*this, target)) return true;
    ::sched_yield();  // the process that raises the count may be queued on this core
  }
  while (true) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = value_.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - target) < 0)
      ::syscall(SYS_futex, word_of(value_), FUTEX_WAIT, seen, &kNap, nullptr, 0);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    if (has_reached(target)) return true;
    if (check()) return has_reached(target);
  }
}

}  // namespace ftrun
