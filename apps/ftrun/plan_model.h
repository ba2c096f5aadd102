#pragma once

#include <cstdint>
#include <string>

#include "config_source.h"
#include "machine/machine.h"

namespace ftrun {

/// ModelOptions name a model to `ftrun plan` that no config names: a folder, a config.json, a name
/// of the Hub or a preset (`model`), or a number of parameters (`size`).
struct ModelOptions {
  std::string model;
  std::string size;

  bool given() const { return !model.empty() || !size.empty(); }
};

/// NamedModel is the model that ModelOptions name.
struct NamedModel {
  /// The name that a config would call it by, and the source of its shape.
  std::string name;
  std::string source;
  ModelConfig config;
};

/// Reads the model. Error(kUsage) where there is none of that name, Error(kBadInput) for a
/// config.json that cannot be read.
NamedModel read_named_model(const ModelOptions& options);

/// Makes a source's config one of that model. A source without files becomes a config that trains
/// all weights in bf16, a row a rank; with as many ranks as the machine (null: none) has devices on
/// `nodes` nodes, unless the source says how many. Error(kUsage) where the source's config names a
/// model.
void plan_for_model(ConfigSource& source, const NamedModel& model, const Machine* machine,
                    int64_t nodes);

/// Returns the line that says which model a plan is for.
std::string named_model_text(const NamedModel& model);

}  // namespace ftrun
