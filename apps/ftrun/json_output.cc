#include "json_output.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <streambuf>
#include <utility>

#include "base/as_error.h"
#include "error_with_problems.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "ftrun-answer";
constexpr int kVersion = 1;

/// DiscardingBuffer is a stream buffer that discards everything that is written to it.
class DiscardingBuffer : public std::streambuf {
 protected:
  int overflow(int byte) override { return traits_type::not_eof(byte); }
  std::streamsize xsputn(const char* /*text*/, std::streamsize size) override { return size; }
};

DiscardingBuffer& discarding_buffer() {
  static DiscardingBuffer buffer;
  return buffer;
}

Json problem_json(const Problem& problem) {
  Json json{{"severity", problem.severity == Severity::kError ? "error" : "notice"},
            {"file", problem.at.file}};
  if (problem.at.line > 0) {
    json["line"] = problem.at.line;
    json["column"] = problem.at.column;
  }
  json["message"] = problem.message;
  if (!problem.remedy.empty()) json["remedy"] = problem.remedy;
  return json;
}

Json failure_json(const std::exception& failure) {
  const Error error = as_error(failure);
  Json json{{"code", error_code_name(error.code())}, {"message", error.message()}};
  if (!error.remedy().empty()) json["remedy"] = error.remedy();
  if (const auto* refused = dynamic_cast<const ErrorWithProblems*>(&failure)) {
    json["problems"] = Json::array();
    for (const Problem& problem : refused->problems())
      json["problems"].push_back(problem_json(problem));
  }
  return json;
}

Json string_schema() {
  return {{"type", "string"}};
}
Json integer_schema() {
  return {{"type", "integer"}, {"minimum", 0}};
}
Json number_schema() {
  return {{"type", "number"}};
}
Json boolean_schema() {
  return {{"type", "boolean"}};
}
Json array_schema(Json items) {
  return {{"type", "array"}, {"items", std::move(items)}};
}
Json map_schema(Json values) {
  return {{"type", "object"}, {"additionalProperties", std::move(values)}};
}

/// Makes the schema of an object with these properties and no others. Properties whose names end
/// with "?" are optional.
Json object_schema(std::initializer_list<std::pair<std::string, Json>> properties) {
  Json json{{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
  for (const auto& [name, schema] : properties) {
    const bool is_optional = name.ends_with("?");
    const std::string key = is_optional ? name.substr(0, name.size() - 1) : name;
    json["properties"][key] = schema;
    if (!is_optional) json["required"].push_back(key);
  }
  json["additionalProperties"] = false;
  return json;
}

Json error_schema() {
  Json codes = Json::array();
  for (const ExitCode code :
       {ExitCode::kBug, ExitCode::kUsage, ExitCode::kUnsupported, ExitCode::kBadInput,
        ExitCode::kEnvironment, ExitCode::kPeerLost, ExitCode::kNumerical, ExitCode::kRequeue})
    codes.push_back(error_code_name(code));
  const Json problem = object_schema({{"severity", {{"enum", {"error", "notice"}}}},
                                      {"file", string_schema()},
                                      {"line?", integer_schema()},
                                      {"column?", integer_schema()},
                                      {"message", string_schema()},
                                      {"remedy?", string_schema()}});
  return object_schema({{"code", {{"enum", codes}}},
                        {"message", string_schema()},
                        {"remedy?", string_schema()},
                        {"problems?", array_schema(problem)}});
}

Json memory_schema() {
  return map_schema(
      object_schema({{"total", integer_schema()}, {"categories?", map_schema(integer_schema())}}));
}

Json check_schema() {
  return object_schema(
      {{"ranks", integer_schema()},
       {"rank_rule", string_schema()},
       {"model", object_schema({{"family", string_schema()}, {"parameters", integer_schema()}})},
       {"memory", memory_schema()},
       {"notices", array_schema(string_schema())},
       {"warnings", array_schema(string_schema())},
       {"config", {{"type", "object"}}},
       {"runs_here", boolean_schema()}});
}

Json time_schema() {
  const Json parts = object_schema({{"layers", number_schema()},
                                    {"update", number_schema()},
                                    {"other", number_schema()},
                                    {"collectives", number_schema()},
                                    {"stages", number_schema()},
                                    {"copies", number_schema()},
                                    {"disk", number_schema()}});
  const Json links = object_schema({{"node", integer_schema()},
                                    {"cluster", integer_schema()},
                                    {"to_host", integer_schema()},
                                    {"from_host", integer_schema()},
                                    {"disk_read", integer_schema()},
                                    {"disk_written", integer_schema()}});
  return object_schema({{"machine", string_schema()},
                        {"seconds", number_schema()},
                        {"tokens_per_second", number_schema()},
                        {"mfu?", number_schema()},
                        {"mfu_causal?", number_schema()},
                        {"hfu?", number_schema()},
                        {"parts", parts},
                        {"exposed", map_schema(number_schema())},
                        {"stage_waits", array_schema(number_schema())},
                        {"link_bytes", links},
                        {"steps?", integer_schema()},
                        {"hours?", number_schema()},
                        {"device_hours?", number_schema()},
                        {"cost?", number_schema()},
                        {"currency?", string_schema()},
                        {"checkpoint_bytes", integer_schema()},
                        {"checkpoint_seconds?", number_schema()},
                        {"what_if?", object_schema({{"assumed", string_schema()},
                                                    {"seconds_as_filed", number_schema()}})}});
}

Json plan_schema() {
  const Json collective = object_schema({{"kind", string_schema()},
                                         {"axes", string_schema()},
                                         {"ranks", integer_schema()},
                                         {"calls", integer_schema()},
                                         {"bytes", integer_schema()}});
  return object_schema({{"rank", integer_schema()},
                        {"ranks", integer_schema()},
                        {"parameters", integer_schema()},
                        {"zero_stage", integer_schema()},
                        {"programs", integer_schema()},
                        {"memory", memory_schema()},
                        {"traffic", object_schema({{"bytes", integer_schema()},
                                                   {"collectives", array_schema(collective)}})},
                        {"time?", time_schema()},
                        {"warnings", array_schema(string_schema())}});
}

Json search_schema() {
  const Json memory = object_schema({{"device", integer_schema()}, {"host", integer_schema()}});
  const Json layout = object_schema({{"layout", string_schema()},
                                     {"keys", {{"type", "object"}}},
                                     {"seconds", number_schema()},
                                     {"memory", memory}});
  const Json choice = object_schema(
      {{"choice", string_schema()},
       {"reason", string_schema()},
       {"seconds?", number_schema()},
       {"memory?", memory},
       {"at_least?", object_schema({{"seconds", number_schema()}, {"memory", memory}})}});
  return object_schema({{"search", object_schema({{"machine", string_schema()},
                                                  {"nodes", integer_schema()},
                                                  {"batch", integer_schema()},
                                                  {"counts", map_schema(integer_schema())},
                                                  {"proved", boolean_schema()},
                                                  {"least_seconds", number_schema()},
                                                  {"layouts", array_schema(layout)},
                                                  {"why_not", array_schema(choice)},
                                                  {"config?", string_schema()}})}});
}

Json table_schema() {
  const Json line = object_schema({{"part", string_schema()},
                                   {"formula", integer_schema()},
                                   {"planned", integer_schema()},
                                   {"why", string_schema()}});
  const Json row = object_schema(
      {{"model", string_schema()},
       {"parameters", integer_schema()},
       {"zero_stage", integer_schema()},
       {"gpus", integer_schema()},
       {"row_tokens", integer_schema()},
       {"recompute", string_schema()},
       {"formula", integer_schema()},
       {"planned", integer_schema()},
       {"fullest", string_schema()},
       {"lines", array_schema(line)},
       {"fits",
        map_schema(object_schema({{"formula", boolean_schema()}, {"planned", boolean_schema()}}))},
       {"seconds?", number_schema()},
       {"waits?", number_schema()}});
  const Json stated = object_schema({{"zero_stage", integer_schema()},
                                     {"stated", number_schema()},
                                     {"formula", number_schema()},
                                     {"planned", number_schema()}});
  return object_schema({{"table", object_schema({{"rows", array_schema(row)},
                                                 {"stated?", array_schema(stated)},
                                                 {"two_gpus?", array_schema(row)}})}});
}

Json inspect_schema() {
  return object_schema(
      {{"kind", {{"enum", {"adapter", "checkpoint", "data", "import", "model"}}}},
       {"path", string_schema()},
       {"facts",
        array_schema(object_schema({{"name", string_schema()}, {"value", string_schema()}}))},
       {"tensors?",
        array_schema(object_schema({{"name", string_schema()}, {"value", string_schema()}}))}});
}

/// Makes the schema of the output of `command` if it succeeds.
Json success_schema(const char* command, Json result) {
  return object_schema({{"format", {{"const", kFormat}}},
                        {"version", {{"const", kVersion}}},
                        {"command", {{"const", command}}},
                        {"exit_code", {{"const", 0}}},
                        {"result", std::move(result)}});
}

}  // namespace

JsonOutput::JsonOutput(const std::vector<std::string>& arguments) {
  const auto end = std::find(arguments.begin(), arguments.end(), "--");
  if (std::find(arguments.begin(), end, "--json") != end)
    silenced_ = std::cout.rdbuf(&discarding_buffer());
}

JsonOutput::~JsonOutput() {
  print_text_instead();
}

void JsonOutput::add_option(CLI::App& command) {
  command.add_flag("--json")->description(
      "answer with one JSON object (its schema: ftrun schema --answers)");
}

void JsonOutput::print_text_instead() {
  if (silenced_ != nullptr) std::cout.rdbuf(std::exchange(silenced_, nullptr));
}

void JsonOutput::print(int exit_code) {
  if (!is_requested()) return;
  print_object({{"exit_code", exit_code}, {"result", result_}});
}

void JsonOutput::print_failure(const std::exception& failure) {
  if (!is_requested()) return;
  print_object({{"exit_code", static_cast<int>(as_error(failure).code())},
                {"error", failure_json(failure)}});
}

/// Prints the object with the fields of all outputs and those of `fields`. Bytes that are not UTF-8
/// (for example in file names) are replaced.
void JsonOutput::print_object(const Json& fields) {
  print_text_instead();
  Json document{{"format", kFormat}, {"version", kVersion}, {"command", command_}};
  document.update(fields);
  std::cout << document.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
}

const char* error_code_name(ExitCode code) {
  switch (code) {
    case ExitCode::kOk:
      return "none";
    case ExitCode::kBug:
      return "bug";
    case ExitCode::kUsage:
      return "usage";
    case ExitCode::kUnsupported:
      return "unsupported";
    case ExitCode::kBadInput:
      return "bad_input";
    case ExitCode::kEnvironment:
      return "environment";
    case ExitCode::kPeerLost:
      return "peer_lost";
    case ExitCode::kNumerical:
      return "numerical";
    case ExitCode::kRequeue:
      return "requeue";
  }
  bug("unknown exit code");
}

std::string answer_schema() {
  const Json failed = object_schema({{"format", {{"const", kFormat}}},
                                     {"version", {{"const", kVersion}}},
                                     {"command", string_schema()},
                                     {"exit_code", {{"type", "integer"}, {"minimum", 1}}},
                                     {"error", error_schema()}});
  const Json schema{
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", "What ftrun answers with --json"},
      {"oneOf",
       {success_schema("check", check_schema()), success_schema("plan", plan_schema()),
        success_schema("plan", search_schema()), success_schema("plan", table_schema()),
        success_schema("inspect", inspect_schema()),
        success_schema(
            "verify", object_schema({{"path", string_schema()}, {"undamaged", {{"const", true}}}})),
        success_schema("convert",
                       object_schema({{"from", string_schema()}, {"to", string_schema()}})),
        failed}}};
  return schema.dump(2) + "\n";
}

}  // namespace ftrun
