#include "training/checkpointed_state.h"

#include "config/recorded_degrees.h"
#include "inputs/resume_policy.h"

namespace ftrun {
namespace {

/// SetupModel is the view of the model of a run's setup. It keeps references to config and setup.
class SetupModel : public CheckpointedState {
 public:
  SetupModel(const Config& config, TrainingSetup& setup) : config_(config), setup_(setup) {}

  std::string fingerprint() const override { return setup_.folder().fingerprint(); }
  std::string base_fingerprint() const override {
    return setup_.train_plan().model.trains_all() ? "" : setup_.folder().weights_fingerprint();
  }
  void check_same_base(const CheckpointMeta& saved, const std::string& folder) const override {
    ftrun::check_same_base(saved, folder, setup_.folder());
  }
  std::map<std::string, int64_t> topology() const override {
    const auto degrees = recorded_degrees(config_.parallel);
    std::map<std::string, int64_t> ranks(degrees.begin(), degrees.end());
    ranks["data_replicate"] = setup_.plan().options.state.replicas;
    return ranks;
  }
  void load_initial(const AdapterFolder* adapter) override {
    setup_.state().load(initial_weights(adapter));
  }
  std::vector<StateDtypeChange> load(Checkpoint& checkpoint) override {
    return setup_.state().load(checkpoint, initial_weights(nullptr));
  }
  std::vector<StateSlice> slices() override {
    return setup_.state().slices(save_buffers()->sectors());
  }
  std::vector<StateSlice> take_snapshot() override {
    return setup_.state().take_snapshot(save_buffers()->sectors());
  }
  void release_snapshot() override { setup_.state().release_snapshot(); }
  void populate_snapshot() override { setup_.state().populate_snapshot(); }
  const SaveBuffers* save_buffers() const override { return &setup_.save_buffers(); }
  ExportResult export_weights(bool writes, const std::function<bool()>& stop) override {
    return ftrun::export_weights(config_, setup_, writes, stop);
  }

 private:
  InitialWeights initial_weights(const AdapterFolder* adapter) const {
    return {setup_.folder(), static_cast<uint64_t>(config_.train.seed), adapter};
  }

  const Config& config_;
  TrainingSetup& setup_;
};

}  // namespace

std::unique_ptr<CheckpointedState> make_checkpointed_state(const Config& config,
                                                           TrainingSetup& setup) {
  return std::make_unique<SetupModel>(config, setup);
}

}  // namespace ftrun
