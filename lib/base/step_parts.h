#pragma once

#include <array>

namespace ftrun {

/// StepPartName names a part of a training step's time.
struct StepPartName {
  /// The key in run.json.
  const char* key;
  /// The name in messages: "waits for collectives".
  const char* name;
};

/// The parts of a step. Predictions, runs and reports use these names.
namespace step_parts {
inline constexpr StepPartName kStep{"step", "step"};
inline constexpr StepPartName kLayers{"layers", "layers"};
inline constexpr StepPartName kUpdate{"update", "update"};
inline constexpr StepPartName kOther{"other", "norm, copies, clears"};
inline constexpr StepPartName kCollectives{"exposed_communication", "waits for collectives"};
inline constexpr StepPartName kStages{"other_stages", "waits for other stages"};
inline constexpr StepPartName kCopies{"copies", "waits for copies"};
inline constexpr StepPartName kDisk{"disk", "waits for the disk"};
/// The remaining parts, which runs do not measure separately: kOther, kCopies, kDisk and waits for
/// slower ranks.
inline constexpr StepPartName kRest{"rest", "all else"};

/// The parts that runs measure; together they are the whole step.
inline constexpr std::array kMeasured{kLayers, kUpdate, kCollectives, kStages, kRest};
}  // namespace step_parts

}  // namespace ftrun
