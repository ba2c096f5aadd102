#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <variant>
#include <vector>

#include "data/loader.h"
#include "exec/lanes.h"
#include "exec/memory.h"
#include "kernels/kernels.h"
#include "model/description.h"
#include "program/program.h"

namespace ftrun {

/// Number of InstrKind values.
inline constexpr size_t kInstrKinds = static_cast<size_t>(InstrKind::kUpdate) + 1;

/// What a step takes in beside the program, and what it gives back.
struct StepRun {
  /// One a kLoadBatch instruction.
  std::span<const Batch> micro_batches;
  StepScalars scalars;
  /// 0 does not clip.
  double clip_norm = 0;
  /// Weight decay in it applies to kUpdate instructions marked `decay`.
  std::variant<AdamOptions, SgdOptions> optimizer;
  /// In: this rank's vote to stop (stop_vote); out: the sum over all ranks.
  double stop_votes = 0;

  /// Sum of token losses and number of counted tokens, over all ranks.
  double loss_sum = 0;
  double counted_tokens = 0;
  /// Before clipping.
  double gradient_norm = 0;
  /// Loss and gradients were finite on all ranks, and the update ran.
  bool finite = true;
  /// Seconds that compute stood waiting for other ranks.
  double exposed_communication_seconds = 0;
};

/// Runs one program on this rank's lanes. It knows instructions, not ZeRO stages or models: what a
/// layer does is in its graph's lists, where things lie is in the bindings.
class Executor {
 public:
  /// `memory` must have allocated `program`. All are borrowed for this object's life.
  Executor(const Program& program, const ModelDescription& model, const RankMemory& memory,
           Communicator& data_group);

  /// Collective: every rank of the group calls this with its own micro-batches.
  void run(StepRun& step);

  /// Seconds the last run spent in instructions, by kind; communication runs beside the others.
  const std::array<double, kInstrKinds>& seconds() const { return seconds_; }

 private:
  void run_timed(const Instr& instr);
  void run_instr(const Instr& instr);
  void begin(const Instr& instr);
  void load_batch(const Instr& instr);
  void run_list(const Instr& instr, const std::vector<Op>& list);
  void all_reduce(const Instr& instr);
  void gradient_norm(const Instr& instr);
  void decide(const Instr& instr);
  void update(const Instr& instr);
  template <typename T>
  T* address(const Range& range) const {
    return reinterpret_cast<T*>(memory_.at(program_, range));
  }

  const Program& program_;
  const ModelDescription& model_;
  const RankMemory& memory_;
  Communicator& group_;
  /// Addresses of a list's values, by instruction.
  std::map<const Instr*, std::vector<void*>> storage_;
  const double* loss_ = nullptr;
  StepRun* step_ = nullptr;
  /// Each kind runs on one lane, so no two threads write the same element.
  std::array<double, kInstrKinds> seconds_{};
  Lanes lanes_;
};

}  // namespace ftrun
