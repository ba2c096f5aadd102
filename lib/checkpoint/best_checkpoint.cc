#include "checkpoint/best_checkpoint.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/checkpoint_manifest.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kMaxBestBytes = 4096;

std::string record_path(const std::string& root) {
  return root + "/" + kBestFile;
}

}  // namespace

void write_best_record(FileSystem& files, const std::string& root, const BestCheckpoint& best) {
  const Json json{
      {"checkpoint", step_folder_name(best.step)}, {"metric", best.metric}, {"value", best.value}};
  write_file_atomic(files, record_path(root),
                    json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<BestCheckpoint> read_best_record(FileSystem& files, const std::string& root) {
  const std::string path = record_path(root);
  if (!files.exists(path)) return std::nullopt;
  const Json json =
      Json::parse(read_file(path, kMaxBestBytes), nullptr, /*allow_exceptions=*/false);
  const auto has = [&](const char* key, auto is) {
    return json.is_object() && json.contains(key) && (json[key].*is)();
  };
  std::optional<int64_t> step;
  if (has("checkpoint", &Json::is_string))
    step = step_of_folder(json["checkpoint"].get<std::string>());
  // A value that is not finite is written as null.
  if (step && has("value", &Json::is_null)) return std::nullopt;
  if (!step || !has("metric", &Json::is_string) || !has("value", &Json::is_number))
    throw Error(ExitCode::kBadInput,
                cat(path, ": does not name a checkpoint, its metric and value"),
                "remove the file: the next best checkpoint writes it again");
  return BestCheckpoint{*step, json["metric"].get<std::string>(), json["value"].get<double>()};
}

void remove_best_record(FileSystem& files, const std::string& root) {
  files.remove_all(record_path(root));
}

}  // namespace ftrun
