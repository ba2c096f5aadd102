#include "report/text_samples.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

std::optional<RecordedTextSample> parse_sample(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto text = [&](const char* key) { return json.contains(key) && json[key].is_string(); };
  if (!json.contains("step") || !json["step"].is_number_integer() || !text("prompt") ||
      !text("answer"))
    return std::nullopt;
  return RecordedTextSample{json["step"].get<int64_t>(), json["prompt"].get<std::string>(),
                            json["answer"].get<std::string>()};
}

}  // namespace

std::string text_sample_line(int64_t step, const TextSample& sample) {
  const Json json{{"step", step}, {"prompt", sample.prompt}, {"answer", sample.answer}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<RecordedTextSample> read_text_samples(const std::string& path, int64_t* unreadable) {
  const std::string text = read_file(path, INT64_MAX);
  std::vector<RecordedTextSample> samples;
  for (std::string_view remaining = text; !remaining.empty();) {
    const std::string_view line = remaining.substr(0, remaining.find('\n'));
    if (auto sample = parse_sample(line))
      samples.push_back(*std::move(sample));
    else if (unreadable != nullptr)
      ++*unreadable;
    remaining.remove_prefix(std::min(remaining.size(), line.size() + 1));
  }
  return samples;
}

}  // namespace ftrun
