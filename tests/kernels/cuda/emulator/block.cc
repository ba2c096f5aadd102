// _FORTIFY_SOURCE is off, because its check of longjmp() takes a jump to another stack for an
// overwritten stack.
#undef _FORTIFY_SOURCE
#include "block.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace emulator {

Size thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kWatchedBytes = 4096;
constexpr unsigned char kPattern = 0xFF;

struct Warp {
  /// The four slots are used in turn: a lane can be one collective ahead of another lane, but not
  /// two.
  Exchanged values[4];
  int arrived[4] = {0, 0, 0, 0};
  int living = 0;
};

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

enum class Awaited { kNothing, kBarrier, kCollective };

/// A thread of a block, with its own stack. The stack is entered once and lives as long as the
/// process, because switching whole contexts (ucontext) calls the kernel for the signal mask each
/// time, which took most of the tests' time.
struct Thread {
  jmp_buf place;
  bool entered = false;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  Size index;
  int number = 0;
  bool ended = true;
  unsigned collectives = 0;
  std::vector<Copy> copies;
  Awaited awaited = Awaited::kNothing;
  /// The number of barriers that had opened when the wait began, or the slot of the awaited
  /// collective.
  int64_t which = 0;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<unsigned char> shared;
  size_t shared_bytes = 0;
  const std::function<void()>* body = nullptr;
  Thread* running = nullptr;
  jmp_buf scheduler;
  int living = 0;
  int at_barrier = 0;
  int64_t barriers = 0;
  /// Counts the events that let other threads of the block continue.
  int64_t progress = 0;
};
Block block;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulator: block (%u,%u,%u) %s\n", block_index.x, block_index.y,
               block_index.z, what);
  std::abort();
}

/// Returns whether the thread can continue. The emulator switches only to such threads; a switch to
/// any other would return at once.
bool can_go_on(const Thread& thread) {
  switch (thread.awaited) {
    case Awaited::kNothing:
      return true;
    case Awaited::kBarrier:
      return block.barriers != thread.which;
    case Awaited::kCollective:
      break;
  }
  const Warp& warp = block.warps[static_cast<size_t>(thread.number / 32)];
  return warp.arrived[thread.which] >= warp.living;
}

void yield() {
  if (_setjmp(block.running->place) == 0) _longjmp(block.scheduler, 1);
}

/// Lets other threads run until the `awaited` event has happened.
void wait_for(Awaited awaited, int64_t which) {
  Thread& thread = *block.running;
  thread.awaited = awaited;
  thread.which = which;
  if (!can_go_on(thread)) yield();
  thread.awaited = Awaited::kNothing;
}

void open_barrier() {
  block.at_barrier = 0;
  ++block.barriers;
  ++block.progress;
}

/// Runs the thread with this stack in one block after another.
void thread_main() {
  for (;;) {
    (*block.body)();
    if (!block.running->copies.empty()) fail("ends while copies of a thread run");
    block.running->ended = true;
    --block.living;
    --block.warps[static_cast<size_t>(block.running->number / 32)].living;
    ++block.progress;
    if (block.living > 0 && block.at_barrier == block.living) open_barrier();
    yield();
  }
}

void enter(Thread& thread) {
  thread.entered = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = thread.stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, thread_main, 0);
  setcontext(&context);
}

/// Runs the thread until it yields or ends.
void resume(Thread& thread) {
  if (_setjmp(block.scheduler) != 0) return;
  if (thread.entered) _longjmp(thread.place, 1);
  enter(thread);
}

void start_thread(Thread& thread, int number, Size size) {
  const auto n = static_cast<unsigned>(number);
  thread.number = number;
  thread.index = Size(n % size.x, n / size.x % size.y, n / (size.x * size.y));
  thread.ended = false;
  thread.collectives = 0;
  thread.awaited = Awaited::kNothing;
  ++block.warps[static_cast<size_t>(number / 32)].living;
}

/// An order of `count` threads that differs in every round: a prime step from a changing start.
class ShuffledOrder {
 public:
  ShuffledOrder(size_t count, size_t round)
      : count_(count), step_(kSteps[round % 5] % count), next_(round * 7919 % count) {}
  size_t next() {
    const size_t found = next_;
    next_ += step_;
    if (next_ >= count_) next_ -= count_;
    return found;
  }

 private:
  static constexpr size_t kSteps[] = {1009, 2003, 3001, 4001, 5003};
  size_t count_, step_, next_;
};

/// Returns whether a warp pauses in this round. Some warps pause for many rounds, so that others
/// run as far ahead as barriers let them.
bool is_blocked(int warp, size_t round) {
  constexpr size_t kRounds = 256;
  return ((round / kRounds + 1) * 2654435761U >> (warp % 16 + 8)) % 2 == 1;
}

void run_block(int count, Size size) {
  std::fill(block.shared.begin(), block.shared.end(), kPattern);
  block.warps.assign(static_cast<size_t>(count + 31) / 32, Warp{});
  block.living = count;
  block.at_barrier = 0;
  for (int i = 0; i < count; ++i) start_thread(block.threads[static_cast<size_t>(i)], i, size);
  bool all = false;
  for (size_t round = 0; block.living > 0; ++round) {
    const int64_t before = block.progress;
    ShuffledOrder order(static_cast<size_t>(count), round);
    for (int i = 0; i < count; ++i) {
      Thread& thread = block.threads[order.next()];
      if (thread.ended || (!all && is_blocked(thread.number / 32, round)) || !can_go_on(thread))
        continue;
      block.running = &thread;
      thread_index = thread.index;
      resume(thread);
    }
    const bool stuck = block.progress == before;
    if (stuck && all) fail("waits for itself");
    all = stuck;
  }
  for (size_t i = block.shared_bytes; i < block.shared.size(); ++i)
    if (block.shared[i] != kPattern) fail("wrote behind its shared memory");
}

}  // namespace

void run(Size grid, Size size, size_t shared_bytes, bool last_first,
         const std::function<void()>& body) {
  const auto count = static_cast<int>(size.x * size.y * size.z);
  while (block.threads.size() < static_cast<size_t>(count)) block.threads.emplace_back();
  block.shared_bytes = shared_bytes;
  block.shared.resize(shared_bytes + kWatchedBytes);
  block.body = &body;
  grid_size = grid;
  block_size = size;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index =
            last_first ? Size(grid.x - 1 - x, grid.y - 1 - y, grid.z - 1 - z) : Size(x, y, z);
        run_block(count, size);
      }
}

void require_aligned(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0)
    fail("moves a word at an address that is no multiple of its size");
}

void start_copy(void* to, const void* from, size_t bytes) {
  require_aligned(to, bytes);
  if (from != nullptr) require_aligned(from, bytes);
  std::memset(to, kPattern, bytes);
  block.running->copies.push_back({to, from, bytes});
}

void wait_for_copies() {
  for (const Copy& copy : block.running->copies)
    if (copy.from == nullptr)
      std::memset(copy.to, 0, copy.bytes);
    else
      std::memcpy(copy.to, copy.from, copy.bytes);
  block.running->copies.clear();
}

void* shared_memory() {
  return block.shared.data();
}

void block_barrier() {
  const int64_t own = block.barriers;
  if (++block.at_barrier == block.living) return open_barrier();
  wait_for(Awaited::kBarrier, own);
}

int lane() {
  return block.running->number % 32;
}

const Exchanged& exchange(const void* value, size_t bytes) {
  Warp& warp = block.warps[static_cast<size_t>(block.running->number / 32)];
  const unsigned turn = block.running->collectives++ % 4;
  std::memcpy(warp.values[turn][lane()], value, bytes);
  ++block.progress;
  if (++warp.arrived[turn] == warp.living) warp.arrived[(turn + 2) % 4] = 0;
  wait_for(Awaited::kCollective, turn);
  return warp.values[turn];
}

}  // namespace emulator
