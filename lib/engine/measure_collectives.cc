#include "engine/measure_collectives.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/median.h"
#include "base/text.h"
#include "comm/open.h"
#include "kernels/kernels.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

/// The sizes of the whole buffer that are measured, in bytes.
constexpr int64_t kMeasuredBytes[] = {1 << 12, 1 << 16, 1 << 20, 1 << 24};
constexpr int kWarmUpRounds = 2;
/// The smallest time of a point, because a curve must not have zeros.
constexpr double kMinSeconds = 1e-6;

/// CollectiveThread is a thread that runs collectives for the thread that computes, like the lane
/// of a group in a step (engine/lanes.h).
class CollectiveThread {
 public:
  CollectiveThread() : thread_([this] { serve(); }) {}
  ~CollectiveThread() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  CollectiveThread(const CollectiveThread&) = delete;
  CollectiveThread& operator=(const CollectiveThread&) = delete;

  /// Runs `body` on the thread and waits for its end. Rethrows the exception of `body`.
  void run(const std::function<void()>& body) {
    std::unique_lock lock(mutex_);
    body_ = &body;
    changed_.notify_all();
    changed_.wait(lock, [this] { return body_ == nullptr; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void serve() {
    run_kernels_on_this_thread();
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || body_ != nullptr; });
      if (stopping_) return;
      lock.unlock();
      std::exception_ptr error;
      try {
        (*body_)();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = std::move(error);
      body_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

/// Returns the seconds of CPU time that the calling thread has used.
double cpu_seconds_of_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Replaces the seconds of each point by their mean over the ranks of the group.
void average_over_ranks(Communicator& group,
                        std::map<std::string, std::vector<std::pair<double, double>>>& points) {
  std::vector<double*> values;
  for (auto& [kind, measured] : points)
    for (auto& [bytes, seconds] : measured) values.push_back(&seconds);
  const auto count = static_cast<int64_t>(values.size());
  const CommBuffer buffer = group.allocate(count * 8);
  double* const sums = buffer.as<double>();
  for (size_t i = 0; i < values.size(); ++i) sums[i] = *values[i];
  group.all_reduce(sums, count, DType::kF64, ReduceOp::kSum, {"bench"}).wait();
  for (size_t i = 0; i < values.size(); ++i) *values[i] = sums[i] / group.size();
}

/// CollectiveTimer times collectives of one group. A time is a mean, not a median: the ranks of a
/// group are late by turns, so a rank does not wait at all in about half of its collectives, and
/// the wait of a step is the sum of all.
class CollectiveTimer {
 public:
  CollectiveTimer(Communicator& group, const CollectiveRequest& request)
      : group_(group), request_(request) {}

  /// Returns the larger of two times of a collective: after some computation (without the time of
  /// the computation), and without any.
  double seconds_of(const std::function<void()>& collective) {
    return std::max({measure_alone(collective), measure_after_work(collective), kMinSeconds});
  }

 private:
  double measure_alone(const std::function<void()>& collective) {
    std::vector<double> samples;
    for (int round = 0; round < kWarmUpRounds + request_.samples; ++round) {
      group_.barrier({"start"});
      const auto start = Clock::now();
      collective();
      if (round >= kWarmUpRounds) samples.push_back(seconds_since(start));
    }
    return mean_without_outliers(std::move(samples));
  }

  double measure_after_work(const std::function<void()>& collective) {
    std::vector<double> samples;
    for (int round = 0; round < kWarmUpRounds + request_.samples; ++round) {
      const auto start = Clock::now();
      const double cpu_seconds = cpu_seconds_of_thread();
      request_.compute();
      const double worked =
          work_seconds(seconds_since(start), cpu_seconds_of_thread() - cpu_seconds);
      thread_.run(collective);
      if (round >= kWarmUpRounds) samples.push_back(seconds_since(start) - worked);
    }
    return mean_without_outliers(std::move(samples));
  }

  /// Returns the seconds that a computation takes without any wait for other ranks, from its
  /// elapsed time and its CPU time. If there are more threads than cores, the threads share the
  /// cores, so the CPU time is scaled by threads per core.
  double work_seconds(double elapsed, double cpu_seconds) const {
    const int threads = request_.ranks * request_.threads;
    return threads <= request_.cores ? elapsed : cpu_seconds * threads / request_.cores;
  }

  Communicator& group_;
  const CollectiveRequest& request_;
  CollectiveThread thread_;
};

}  // namespace

std::map<std::string, Curve> measure_collectives(const CollectiveRequest& request) {
  set_kernel_threads(request.threads);
  const auto rendezvous = Rendezvous::connect({.rank = request.rank,
                                               .world_size = request.ranks,
                                               .port = request.port,
                                               .listen_fd = request.listen_fd,
                                               .token = request.token});
  std::vector<int> members(static_cast<size_t>(request.ranks));
  std::iota(members.begin(), members.end(), 0);
  const auto group = open_communicator(*rendezvous, "bench", members, {});
  std::map<std::string, std::vector<std::pair<double, double>>> points;
  {
    CollectiveTimer timer(*group, request);
    for (const int64_t bytes : kMeasuredBytes) {
      const int64_t part_elements = bytes / 4 / request.ranks,
                    full_elements = part_elements * request.ranks;
      const CommBuffer full_buffer = group->allocate(full_elements * 4),
                       part_buffer = group->allocate(part_elements * 4);
      float* const full = full_buffer.as<float>();
      float* const part = part_buffer.as<float>();
      std::memset(full, 0, static_cast<size_t>(full_elements) * 4);
      std::memset(part, 0, static_cast<size_t>(part_elements) * 4);
      const auto measure = [&](const char* kind, const std::function<void()>& collective) {
        points[cat(kind, " ", request.ranks)].emplace_back(static_cast<double>(full_elements * 4),
                                                           timer.seconds_of(collective));
      };
      measure("all_reduce", [&] {
        group->all_reduce(full, full_elements, DType::kF32, ReduceOp::kSum, {"bench"}).wait();
      });
      measure("reduce_scatter", [&] {
        group->reduce_scatter(full, part, part_elements, DType::kF32, ReduceOp::kSum, {"bench"})
            .wait();
      });
      measure("all_gather", [&] {
        group
            ->all_gather(full + request.rank * part_elements, full, part_elements, DType::kF32,
                         {"bench"})
            .wait();
      });
    }
  }
  average_over_ranks(*group, points);
  group->shutdown();
  rendezvous->shutdown();
  std::map<std::string, Curve> curves;
  for (auto& [kind, measured] : points) curves[kind] = Curve(std::move(measured));
  return curves;
}

}  // namespace ftrun
