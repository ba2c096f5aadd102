#include "inputs/resume_policy.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "base/text.h"
#include "config/schema.h"
#include "inputs/checkpoint_fields.h"
#include "report/plain_json.h"
#include "report/resume_check.h"

namespace ftrun {
namespace {

constexpr std::string_view kConfig = "config.";

/// kChangeableFields lists the fields of a manifest outside of its config, each with all fields
/// below it, that a resume may change. Another CPU may use another library for matrix
/// multiplication, and sums over other ranks may be computed in another order: both may round
/// differently. The validation data affects no step.
constexpr std::string_view kChangeableFields[] = {"topology", "products", "sums", "attention",
                                                  "data.validation"};

/// Returns whether the value of a field is compared in another one: the seed in config.train.seed,
/// the key of a config where its row of the schema says (ResumeRule::kPartOfOtherKey).
bool is_part_of_other_key(const std::string& field) {
  if (field == "seed") return true;
  return std::any_of(
      Schema::get().fields().begin(), Schema::get().fields().end(), [&](const Field& key) {
        return key.on_resume == ResumeRule::kPartOfOtherKey && field == cat(kConfig, key.path());
      });
}

bool may_change(const std::string& field) {
  const std::vector<std::string>& fields = changeable_fields();
  return std::any_of(fields.begin(), fields.end(), [&](const std::string& changeable) {
    return field == changeable ||
           (field.starts_with(changeable) && field[changeable.size()] == '.');
  });
}

/// Returns whether a difference is a key of the config that the record's version did not know, and
/// that this run leaves at its default.
bool is_new_default(const ManifestDifference& difference) {
  if (difference.earlier_value != kNotRecorded || !difference.field.starts_with(kConfig))
    return false;
  const std::string path = difference.field.substr(kConfig.size());
  const auto& fields = Schema::get().fields();
  const auto field = std::find_if(fields.begin(), fields.end(), [&](const Field& known) {
    return known.path() == path && known.load;
  });
  if (field == fields.end()) return false;
  bool is_default = false;
  std::visit(
      [&](const auto& value) {
        flatten(value, path, [&](const std::string&, const std::string& text) {
          is_default = text == difference.current_value;
        });
      },
      field->default_value);
  return is_default;
}

}  // namespace

const std::vector<std::string>& changeable_fields() {
  static const std::vector<std::string> kAll = [] {
    std::vector<std::string> all(std::begin(kChangeableFields), std::end(kChangeableFields));
    for (const Section& section : Schema::get().sections())
      if (section.may_change) all.push_back(cat(kConfig, section.path));
    for (const Field& key : Schema::get().fields())
      if (key.on_resume == ResumeRule::kMayChange) all.push_back(cat(kConfig, key.path()));
    return all;
  }();
  return kAll;
}

std::vector<std::string> check_resume(const std::string& path, const RunManifest& recorded,
                                      const RunManifest& current,
                                      const std::vector<std::string>& allowed) {
  std::vector<ManifestDifference> refusable;
  std::vector<std::string> changes;
  for (const ManifestDifference& difference : compare_manifests(recorded, current)) {
    if (!difference.affects_results || is_part_of_other_key(difference.field) ||
        is_new_default(difference))
      continue;
    if (may_change(difference.field))
      changes.push_back(cat(difference.field, ": was ", difference.earlier_value, ", is now ",
                            difference.current_value));
    else
      refusable.push_back(difference);
  }
  refuse_other_run(path, refusable, allowed);
  return changes;
}

std::string conversion_notice(const std::string& folder, const StateDtypeChange& conversion) {
  return cat(folder, ": holds ", join(conversion.kinds, ", "), " in ",
             dtype_name(conversion.stored_dtype), "; this run keeps ",
             conversion.kinds.size() == 1 ? "it" : "them", " in ", dtype_name(conversion.run_dtype),
             conversion.run_dtype == DType::kF32 ? ", no value changes"
                                                 : ", each value rounded to the nearest");
}

void check_same_base(const CheckpointMeta& saved, const std::string& step,
                     const ModelFolder& base) {
  const auto record = saved.extra.find(kBaseRecord);
  if (record == saved.extra.end() || record->second == base.weights_fingerprint()) return;
  throw Error(
      ExitCode::kBadInput,
      cat(base.path(), ": its weights differ from the base model that ", step, " was trained on; ",
          step, " holds only the trained weights, so it needs that base"),
      "give the model folder that training began from, unchanged");
}

}  // namespace ftrun
