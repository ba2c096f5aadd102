#include "hangs.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "ranks.h"

using namespace ftrun;
using namespace std::chrono_literals;

namespace {

constexpr int kRanks = 4;

std::string hang_text(const HangCase& hang) {
  return cat("hang ", static_cast<int>(hang.hang), " over ", backend_name(hang.backend), ", rank ",
             hang.victim, ", step ", hang.step, ", collective ", hang.collective_index);
}

/// FirstFailure holds the message of the first rank that fails.
struct FirstFailure {
  std::mutex mutex;
  std::condition_variable changed;
  std::string message;
  int culprit = -1;
  int failed = 0;
  /// The victim has reached its step (`injected`); the first rank failed before that, or in an
  /// earlier step (`too_early`).
  std::atomic<bool> injected = false;
  bool too_early = false;
};

/// A rank of four, which are in pairs along each of two axes, and all together in a third group.
class Member {
 public:
  Member(Rendezvous& rendezvous, const HangCase& hang, const MakeHangDevice& make_device,
         FirstFailure& first_failure)
      : rendezvous_(rendezvous),
        hang_(hang),
        first_failure_(first_failure),
        rank_(rendezvous.rank()),
        device_(make_device()) {
    const CommOptions at_first{
        .backend = hang.backend, .timeout = 20s, .device = device_->number()};
    tp_ = open_communicator(rendezvous, cat("tp", rank_ / 2), {rank_ / 2 * 2, rank_ / 2 * 2 + 1},
                            at_first);
    dp_ = open_communicator(rendezvous, cat("dp", rank_ % 2), {rank_ % 2, rank_ % 2 + 2}, at_first);
    world_ = open_communicator(rendezvous, "world", all_ranks(kRanks), at_first);
    for (Communicator* group : groups()) device_->attach(*group);
    world_->barrier({"start"});
    for (Communicator* group : groups()) group->set_timeout(hang.limit);
  }

  void run() {
    try {
      for (int64_t step = 0; step <= hang_.step + 3; ++step) run_step(step);
    } catch (const Error& error) {
      const std::lock_guard lock(first_failure_.mutex);
      if (first_failure_.failed++ == 0) {
        first_failure_.message = error.message();
        first_failure_.culprit = rendezvous_.board().blamed_rank();
        first_failure_.too_early = !first_failure_.injected || step_ < hang_.step;
      }
      first_failure_.changed.notify_all();
    }
    for (Communicator* group : groups()) group->abort("over");
  }

 private:
  std::vector<Communicator*> groups() const { return {tp_.get(), dp_.get(), world_.get()}; }

  void run_step(int64_t step) {
    step_ = step;
    rendezvous_.board().show_phase(cat("step ", step));
    const bool now = step == hang_.step;
    if (now && rank_ == hang_.victim) first_failure_.injected = true;
    // The victim and rank 3 - victim use their two pairs in the opposite order, so all four wait in
    // a ring.
    const bool reversed = now && hang_.hang == Hang::kDeadlock &&
                          (rank_ == hang_.victim || rank_ == 3 - hang_.victim);
    for (int collective_index = 0; collective_index < 3; ++collective_index) {
      if (now && rank_ == hang_.victim && collective_index == hang_.collective_index && inject())
        continue;
      Communicator& group = collective_index == 2                 ? *world_
                            : (collective_index == 0) != reversed ? *tp_
                                                                  : *dp_;
      const bool longer = now && rank_ == hang_.victim &&
                          collective_index == hang_.collective_index &&
                          hang_.hang == Hang::kWrongSize;
      collective_of(step, collective_index, group, 64 + step + (longer ? 1 : 0)).wait();
    }
    device_->synchronize(groups());
  }

  /// Starts a collective; its kind alternates from step to step.
  Work collective_of(int64_t step, int collective_index, Communicator& group, int64_t count) {
    std::vector<float>& data = data_[static_cast<size_t>(collective_index)];
    std::vector<float>& moved = moved_[static_cast<size_t>(collective_index)];
    data.assign(static_cast<size_t>(count * group.size()), 1.0F);
    moved.resize(data.size());
    if (step % 3 == 0)
      return group.all_reduce(data.data(), count, DType::kF32, ReduceOp::kSum, {"gradients"});
    if (step % 3 == 1)
      return group.all_to_all(data.data(), moved.data(), count, DType::kF32, {"tokens"});
    return group.shift(data.data(), moved.data(), count, DType::kF32, 1, {"keys"});
  }

  /// Makes the victim hang; returns whether it skips the collective.
  bool inject() {
    if (hang_.hang == Hang::kSkips) return true;
    if (hang_.hang != Hang::kComputes && hang_.hang != Hang::kSlowDisk) return false;
    if (hang_.hang == Hang::kSlowDisk)
      rendezvous_.board().show_phase(cat("writing the checkpoint of step ", hang_.step));
    if (hang_.hang == Hang::kComputes)
      rendezvous_.board().enter_lane(0,
                                     make_activity(ActivityKind::kOwnWork, "forward layer 1 mb 0"));
    std::unique_lock lock(first_failure_.mutex);
    first_failure_.changed.wait(lock, [&] { return first_failure_.failed > 0; });
    throw Error(ExitCode::kEnvironment, "the test is over");
  }

  Rendezvous& rendezvous_;
  const HangCase& hang_;
  FirstFailure& first_failure_;
  const int rank_;
  int64_t step_ = 0;
  /// The memory of a step's collectives, which must live until the device is done with them.
  std::array<std::vector<float>, 3> data_, moved_;
  std::unique_ptr<HangDevice> device_;
  std::unique_ptr<Communicator> tp_, dp_, world_;
};

/// Returns "" if the rank that caused the hang was named, otherwise the message that names another
/// rank. Returns nothing if a rank failed before the hang was injected, for example because the
/// machine stalled for longer than the limit.
std::optional<std::string> naming_error(const HangCase& hang, const MakeHangDevice& make_device) {
  FirstFailure first_failure;
  auto all = Rendezvous::make_in_process(kRanks, 20s, 50ms);
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Member>> members(kRanks);
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      auto& member = members[static_cast<size_t>(rank)];
      member = std::make_unique<Member>(*all[static_cast<size_t>(rank)], hang, make_device,
                                        first_failure);
      member->run();
    });
  for (std::thread& thread : threads) thread.join();
  if (first_failure.too_early) return std::nullopt;
  const std::string wrong =
      cat(hang_text(hang), ": rank ", first_failure.culprit, " is named: ", first_failure.message);
  if (hang.hang == Hang::kDeadlock)
    return first_failure.message.find("they wait for each other") != std::string::npos ? "" : wrong;
  if (first_failure.culprit != hang.victim) return wrong;
  const char* doing = hang.hang == Hang::kComputes   ? ", forward layer 1 mb 0, for "
                      : hang.hang == Hang::kSlowDisk ? "it is in writing the checkpoint of step "
                                                     : "";
  return first_failure.message.find(doing) != std::string::npos ? "" : wrong;
}

/// Returns the result of naming_error(). A try without a result is repeated with twice the limit,
/// up to sixteen times the first limit.
std::string retried_naming_error(HangCase hang, const MakeHangDevice& make_device) {
  std::optional<std::string> found = naming_error(hang, make_device);
  for (int tries = 0; !found && tries < 4; ++tries) {
    hang.limit *= 2;
    found = naming_error(hang, make_device);
  }
  return found.value_or(cat(hang_text(hang), ": a rank failed before the hang each time"));
}

}  // namespace

HangCase draw_hang(std::mt19937& random, Hang hang, CommBackend backend) {
  HangCase drawn{.hang = hang,
                 .backend = backend,
                 .victim = static_cast<int>(random() % kRanks),
                 .step = static_cast<int64_t>(random() % 20),
                 .collective_index = static_cast<int>(random() % 3)};
  // If two ranks of a pair disagree, neither can be identified as the wrong one; among all four,
  // three agree.
  if (hang == Hang::kSkips || hang == Hang::kWrongSize) drawn.collective_index = 2;
  return drawn;
}

std::vector<std::string> find_naming_errors(const std::vector<HangCase>& hangs,
                                            const MakeHangDevice& make_device) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::vector<std::string> wrong;
  std::vector<std::thread> workers;
  // More threads than CPUs do not matter, because they mostly wait.
  for (int worker = 0; worker < 4; ++worker)
    workers.emplace_back([&] {
      for (size_t i = next++; i < hangs.size(); i = next++) {
        const std::string found = retried_naming_error(hangs[i], make_device);
        const std::lock_guard lock(mutex);
        if (!found.empty()) wrong.push_back(found);
      }
    });
  for (std::thread& worker : workers) worker.join();
  return wrong;
}
