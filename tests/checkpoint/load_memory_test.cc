#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save.h"
#include "test_support.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

constexpr int64_t kLoadedRows = 24576;
constexpr int64_t kLoadedColumns = 1024;  // 96 MiB
constexpr int64_t kMemoryMiB = 1 << 20;
constexpr int64_t kMaxExtraBytes = 64 * kMemoryMiB;

int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::stoll(line.substr(field.size() + 1)) * 1024;
  FAIL("no " << field << " in /proc/self/status");
  return 0;
}

/// Returns the peak of this process's memory while `work` runs, beyond what it used before.
int64_t peak_bytes_of(const std::function<void()>& work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const int64_t before = status_bytes("VmRSS:");
  work();
  return status_bytes("VmHWM:") - before;
}

float loaded_value(int64_t element) {
  return static_cast<float>(element % 16777213);
}

/// Saves one tensor in two files, cut by rows or by columns; returns the path of the checkpoint.
std::string save_tensor(const TemporaryFolder& temp, bool columns) {
  const auto errors = run_ranks(2, [&](const CheckpointGroup& group) {
    const Box box =
        columns ? Box{{0, group.rank * kLoadedColumns / 2}, {kLoadedRows, kLoadedColumns / 2}}
                : Box{{group.rank * kLoadedRows / 2, 0}, {kLoadedRows / 2, kLoadedColumns}};
    StateSlice slice{"w", "param", DType::kF32, {kLoadedRows, kLoadedColumns}, box};
    slice.read = [&](int64_t first, int64_t last, void* out) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t row = box.offset[0] + i / box.extent[1];
        static_cast<float*>(out)[i - first] =
            loaded_value(row * kLoadedColumns + box.offset[1] + i % box.extent[1]);
      }
    };
    save_checkpoint(posix_files(), {.root = temp.path(), .verify_written = false},
                    toy_meta(columns ? 2 : 1, 2), {slice}, group);
  });
  for (const std::string& error : errors) REQUIRE(error == "");
  return temp / step_folder_name(columns ? 2 : 1);
}

/// Reads a box as `dtype` into `state`; returns the peak of memory that this needed besides the
/// box.
template <typename T>
int64_t extra_bytes_of_read(const std::string& folder, const Box& box, DType dtype,
                            std::vector<T>& state) {
  const int64_t peak = peak_bytes_of([&] {
    state.resize(static_cast<size_t>(box.numel()));
    Checkpoint checkpoint(folder);
    checkpoint.read(
        {"w", "param", dtype, {kLoadedRows, kLoadedColumns}, box, state.data(), nullptr});
  });
  return peak - box.numel() * static_cast<int64_t>(sizeof(T));
}

int64_t extra_bytes_when_rounding(const std::string& folder, const Box& box) {
  std::vector<uint16_t> state;
  return extra_bytes_of_read(folder, box, DType::kBF16, state);
}

int64_t extra_bytes_when_reading(const std::string& folder, const Box& box) {
  std::vector<float> state;
  const int64_t extra_bytes = extra_bytes_of_read(folder, box, DType::kF32, state);
  int64_t wrong = 0;
  for (int64_t i = 0; i < box.numel(); ++i) {
    const int64_t row = box.offset[0] + i / box.extent[1];
    wrong += state[static_cast<size_t>(i)] ==
                     loaded_value(row * kLoadedColumns + box.offset[1] + i % box.extent[1])
                 ? 0
                 : 1;
  }
  REQUIRE(wrong == 0);
  return extra_bytes;
}

}  // namespace

// [long]: under sanitizers, their own memory would be counted too.
TEST_CASE(
    "loading needs little more memory than the state, however the checkpoint divides its tensors",
    "[long]") {
  const MemoryFolder temp;
  const std::vector<Box> wanted{whole_box({kLoadedRows, kLoadedColumns}),
                                {{kLoadedRows / 3, 0}, {kLoadedRows / 3, kLoadedColumns}},
                                {{0, 300}, {kLoadedRows, 500}}};
  for (const bool columns : {false, true}) {
    const std::string folder = save_tensor(temp, columns);
    for (const Box& box : wanted) {
      const int64_t extra_bytes = extra_bytes_when_reading(folder, box);
      INFO("cut by " << (columns ? "columns" : "rows") << ": " << human_bytes(extra_bytes)
                     << " beside the state");
      REQUIRE(extra_bytes < kMaxExtraBytes);
      REQUIRE(extra_bytes_when_rounding(folder, box) < kMaxExtraBytes);
    }
    const int64_t verified = peak_bytes_of([&] {
      Checkpoint checkpoint(folder);
      for (size_t i = 0; i < checkpoint.manifest().files.size(); ++i) checkpoint.verify_file(i);
    });
    REQUIRE(verified < kMaxExtraBytes);
  }
}

}  // namespace ftrun::testing
