#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "base/enum_names.h"
#include "base/text.h"
#include "config/resolve.h"

namespace ftrun {

/// Formats a value that a step decides, for the line that says so.
template <typename T>
std::string decision_text(T value) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(name_of(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, double>) {
    return number_text(value);
  } else {
    static_assert(std::is_same_v<T, int64_t>, "a decided value has one of these types");
    return std::to_string(value);
  }
}

/// ResolveState is the state that the steps of resolve() share.
struct ResolveState {
  /// The config under construction: written values, and the defaults of keys that no step has
  /// decided.
  Config& config;
  const ResolveContext& context;
  Problems& problems;
  std::vector<ResolvedLine>& lines;
  /// Paths of "auto" keys that a step has decided.
  std::set<std::string> decided_keys;

  bool is_written(const std::string& path) const { return config.origins.is_written(path); }
  bool is_auto(const std::string& path) const { return config.origins.is_auto(path); }
  /// Returns whether a key is still "auto" (Config::auto_keys).
  bool is_undecided(const std::string& path) const { return config.auto_keys.contains(path); }
  void error(const std::string& path, std::string message, std::string remedy = "");
  void notice(const std::string& path, std::string message, std::string remedy = "");
  /// Sets the member of the key at `path`, and records the decision.
  template <typename T>
  void decide(const std::string& path, T& member, std::type_identity_t<T> value,
              const std::string& reason) {
    member = value;
    record_decision(path, decision_text(member), reason);
  }
  /// Records that the key at `path` is decided, and adds the line "auto: key = value (reason)" or,
  /// for a key that was not written, "default: ...". `value` is the text of a value that another
  /// step has set.
  void record_decision(const std::string& path, const std::string& value,
                       const std::string& reason);
};

// The functions below are the steps of resolve(). They run in this order, and each reads the
// decisions of the steps before it. Exceptions: check_evaluation() runs within
// check_contradictions(), and resolve_elasticity() within resolve_batch().

// resolve_mesh.cc
void resolve_mesh(ResolveState& r);

// resolve.cc
/// Chooses GPUs for device: auto, if there are GPUs that can run the config.
void resolve_device(ResolveState& r);

// resolve_training.cc
void resolve_train(ResolveState& r);

// resolve.cc
/// Sets the type of a section without a type to the only type that exists, and compares the lengths
/// of the lists that are one pattern.
void resolve_adapter(ResolveState& r);
/// Requires a type, and a block size that the kernels support.
void resolve_quantization(ResolveState& r);
/// Raises keep_last to two checkpoints at least.
void resolve_checkpoint(ResolveState& r);

// resolve_evaluation.cc
/// Decides whether a larger value of keep_best's metric is better.
void resolve_best_mode(ResolveState& r);
/// Checks the names of the validation sets, and the keys that keep checkpoints, stop and export by
/// metrics on them.
void check_evaluation(ResolveState& r);

// resolve.cc
void resolve_data(ResolveState& r);

// resolve_training.cc
void resolve_precision(ResolveState& r);

// resolve_batch.cc
void resolve_batch(ResolveState& r);

// resolve_elasticity.cc
/// Chooses the batch instead of resolve_batch() if elasticity is enabled.
void resolve_elasticity(ResolveState& r);

// axes/pipeline/keys.cc
/// Resolves the number of parts of a stage by the schedule, and reports what keeps the pipeline
/// from running as written.
void resolve_pipeline(ResolveState& r);

// resolve_training.cc
void resolve_optimizer(ResolveState& r);
void resolve_scheduler(ResolveState& r);
void resolve_zero(ResolveState& r);

// resolve.cc
/// Reports each "auto" key that no step has decided, with the default that it has already. Changes
/// no value.
void report_undecided_keys(ResolveState& r);

// resolve_checks.cc
void check_contradictions(ResolveState& r);

/// Formats the value of a key, by the schema.
std::string value_text(const Config& config, const std::string& path);

}  // namespace ftrun
