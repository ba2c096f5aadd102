#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../checkpoint/test_support.h"
#include "base/error.h"
#include "base/file.h"
#include "inputs/checkpoint_fields.h"
#include "training/checkpointed_state.h"

namespace ftrun::testing {

/// FakeModel is a model of a few numbers, whose state a test can change. It records the calls that
/// it receives.
class FakeModel : public CheckpointedState {
 public:
  FakeModel(int world_size, int rank)
      : world_size_(world_size), rank_(rank), state(world_size, rank, 0) {}

  /// Sets the state to this version, as training changes it.
  void train_to(int version) { state = testing::ToyState(world_size_, rank_, version); }

  std::string fingerprint() const override { return "folder"; }
  std::string base_fingerprint() const override {
    ++bases_read;
    return base;
  }
  void check_same_base(const CheckpointMeta& saved, const std::string& folder) const override {
    const auto record = saved.extra.find(kBaseRecord);
    if (record != saved.extra.end() && record->second != base)
      throw Error(ExitCode::kBadInput, cat(folder, ": another base"), "give the first one");
  }
  std::map<std::string, int64_t> topology() const override { return {{"data", world_size_}}; }

  void load_initial(const AdapterFolder* adapter) override {
    calls.push_back(adapter == nullptr ? "first weights" : "first weights of an adapter");
    train_to(0);
  }
  std::vector<StateDtypeChange> load(Checkpoint& checkpoint) override {
    calls.push_back(cat("load ", checkpoint.meta().step));
    state.clear();
    checkpoint.read(state.slices());
    return {};
  }

  std::vector<StateSlice> slices() override {
    calls.push_back("slices");
    return state.slices();
  }
  std::vector<StateSlice> take_snapshot() override {
    require(!copy_, "one copy at a time");
    require(populated, "pages are there before they are copied to");
    calls.push_back("snapshot");
    copy_ = state;
    return copy_->slices();
  }
  void release_snapshot() override {
    calls.push_back("release");
    copy_.reset();
  }
  void populate_snapshot() override {
    ++populations;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // reading the disk takes some time
    populated = true;
  }
  const SaveBuffers* save_buffers() const override { return nullptr; }

  ExportResult export_weights(bool writes, const std::function<bool()>& stop) override {
    calls.push_back(writes ? "export" : "help to export");
    ExportResult result = exported;
    result.stopped = stop();
    return result;
  }

 private:
  int world_size_;
  int rank_;
  std::optional<testing::ToyState> copy_;

 public:
  testing::ToyState state;
  std::string base;
  mutable int bases_read = 0;
  std::atomic<int> populations = 0;
  std::atomic<bool> populated = false;
  /// The result that an export reports.
  ExportResult exported;
  std::vector<std::string> calls;
};

}  // namespace ftrun::testing
