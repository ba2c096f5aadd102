#include "supported_features.h"

#include <nlohmann/json.hpp>

#include "config/schema.h"
#include "config/unsupported.h"
#include "model/families.h"
#include "model/readable_quantizations.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

/// Describes whether a key is supported on CPUs and on GPUs: "yes", "emulated" (only on emulated
/// GPUs), "in part" (a note says what is refused), "no", or "no effect" if it is read and ignored.
Json key_json(const Field& field) {
  const std::string path = field.path(), missing = unsupported_part(path);
  std::string where = "yes";
  if (field.support == KeySupport::kNotice) where = "no effect";
  if (field.support == KeySupport::kRefuse || field.support == KeySupport::kRefuseUnlessDefault)
    where = "no";
  if (!missing.empty()) where = field.choices.empty() ? "no" : "in part";
  Json json{{"key", path}, {"processors", where}, {"gpus", where}};
  if (where == "yes" && is_only_emulated_on_gpus(path)) json["gpus"] = "emulated";
  if (!missing.empty()) json["note"] = missing;
  return json;
}

}  // namespace

std::string supported_features_json() {
  Json keys = Json::array(), families_json = Json::array();
  for (const Field& field : Schema::get().fields()) keys.push_back(key_json(field));
  for (const Family& family : families())
    families_json.push_back(
        {{"model_type", family.model_type}, {"architecture", family.architecture}});
  const Json support{{"format", "ftrun-support"},
                     {"version", 1},
                     {"keys", keys},
                     {"families", families_json},
                     {"quantized_models", kReadableQuantizations}};
  return support.dump(2) + "\n";
}

}  // namespace ftrun
