#pragma once

#include <cstdint>
#include <string>

#include "config_source.h"
#include "machine/machine.h"

namespace ftrun {

/// ModelOptions names a model for `ftrun plan` without a config: a folder, a config.json, a Hub
/// name or a preset (`model`), or a number of parameters (`size`).
struct ModelOptions {
  std::string model;
  std::string size;

  bool is_given() const { return !model.empty() || !size.empty(); }
};

/// NamedModel is the model that ModelOptions names.
struct NamedModel {
  /// The name by which a config would refer to the model, and the source of its shape.
  std::string name;
  std::string source;
  ModelConfig config;
};

/// Reads the model. Throws Error(kUsage) if there is no model of that name, and Error(kBadInput)
/// for a config.json that cannot be read.
NamedModel read_named_model(const ModelOptions& options);

/// Sets the model of a source's config. A source without files becomes a config that trains all
/// weights in bf16 with one row per rank. It has as many ranks as the machine has devices on
/// `nodes` nodes (`machine` may be null), unless the source gives the number of ranks. Throws
/// Error(kUsage) if the source's config names a model already.
void set_planned_model(ConfigSource& source, const NamedModel& model, const Machine* machine,
                       int64_t nodes);

/// Returns the line that names the model of a plan.
std::string named_model_text(const NamedModel& model);

}  // namespace ftrun
