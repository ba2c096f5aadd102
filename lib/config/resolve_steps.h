#pragma once

#include <set>
#include <string>
#include <vector>

#include "config/resolve.h"

namespace ftrun {

/// Resolving is what the steps of resolve() share.
struct Resolving {
  Config& config;
  const ResolveContext& context;
  Problems& problems;
  std::vector<std::string>& lines;
  /// Paths of "auto" keys that a step has decided.
  std::set<std::string> decided;

  bool given(const std::string& path) const { return config.origins.given(path); }
  bool is_auto(const std::string& path) const { return config.origins.is_auto(path); }
  void error(const std::string& path, std::string message, std::string remedy = "");
  void notice(const std::string& path, std::string message, std::string remedy = "");
  /// Prints "auto: key = value (reason)" or, for a key that was not written, "default: ...".
  void decide(const std::string& path, const std::string& value, const std::string& reason);
};

// The steps of resolve(), in the order they run; each reads what those before it decided.
void resolve_mesh(Resolving& r);
/// A section without type is of the one kind there is.
void resolve_adapter(Resolving& r);
void resolve_train(Resolving& r);
/// Never fewer than two are kept.
void resolve_checkpoint(Resolving& r);
/// The names of the validation sets, and what keeps, stops and exports by their metrics.
void check_evaluation(Resolving& r);
void resolve_data(Resolving& r);
void resolve_precision(Resolving& r);
void resolve_batch(Resolving& r);
/// Chooses the batch where elasticity does, in the place of resolve_batch.
void resolve_elasticity(Resolving& r);
/// Parts a stage, by the schedule; what keeps a pipeline from running as it is written.
void resolve_pipeline(Resolving& r);
void resolve_optimizer(Resolving& r);
void resolve_scheduler(Resolving& r);
void resolve_zero(Resolving& r);
/// GPUs for device: auto, where there are some that can do what is asked for.
void resolve_device(Resolving& r);
/// "auto" keys that no rule decides take their default.
void resolve_remaining(Resolving& r);
void check_contradictions(Resolving& r);

/// The value of a key as text, by the schema.
std::string value_text(const Config& config, const std::string& path);

}  // namespace ftrun
