#include "answer.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <streambuf>
#include <utility>

#include "base/as_error.h"
#include "refusal.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "ftrun-answer";
constexpr int kVersion = 1;

/// NoOutput is a stream buffer that discards everything that is written to it.
class NoOutput : public std::streambuf {
 protected:
  int overflow(int byte) override { return traits_type::not_eof(byte); }
  std::streamsize xsputn(const char* /*text*/, std::streamsize size) override { return size; }
};

NoOutput& no_output() {
  static NoOutput buffer;
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
  if (const auto* refused = dynamic_cast<const RefusedConfig*>(&failure)) {
    json["problems"] = Json::array();
    for (const Problem& problem : refused->problems())
      json["problems"].push_back(problem_json(problem));
  }
  return json;
}

Json text() {
  return {{"type", "string"}};
}
Json whole() {
  return {{"type", "integer"}, {"minimum", 0}};
}
Json number() {
  return {{"type", "number"}};
}
Json truth() {
  return {{"type", "boolean"}};
}
Json list_of(Json items) {
  return {{"type", "array"}, {"items", std::move(items)}};
}
Json map_of(Json values) {
  return {{"type", "object"}, {"additionalProperties", std::move(values)}};
}

/// Makes the schema of an object with these properties and no others. Properties whose names end
/// with "?" are optional.
Json object_of(std::initializer_list<std::pair<std::string, Json>> properties) {
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
  const Json problem = object_of({{"severity", {{"enum", {"error", "notice"}}}},
                                  {"file", text()},
                                  {"line?", whole()},
                                  {"column?", whole()},
                                  {"message", text()},
                                  {"remedy?", text()}});
  return object_of({{"code", {{"enum", codes}}},
                    {"message", text()},
                    {"remedy?", text()},
                    {"problems?", list_of(problem)}});
}

Json memory_schema() {
  return map_of(object_of({{"total", whole()}, {"categories?", map_of(whole())}}));
}

Json check_schema() {
  return object_of({{"ranks", whole()},
                    {"rank_rule", text()},
                    {"model", object_of({{"family", text()}, {"parameters", whole()}})},
                    {"memory", memory_schema()},
                    {"notices", list_of(text())},
                    {"warnings", list_of(text())},
                    {"config", {{"type", "object"}}},
                    {"runs_here", truth()}});
}

Json time_schema() {
  const Json parts = object_of({{"layers", number()},
                                {"update", number()},
                                {"other", number()},
                                {"collectives", number()},
                                {"stages", number()},
                                {"copies", number()},
                                {"disk", number()}});
  const Json links = object_of({{"node", whole()},
                                {"cluster", whole()},
                                {"to_host", whole()},
                                {"from_host", whole()},
                                {"disk_read", whole()},
                                {"disk_written", whole()}});
  return object_of(
      {{"machine", text()},
       {"seconds", number()},
       {"tokens_per_second", number()},
       {"mfu?", number()},
       {"mfu_causal?", number()},
       {"hfu?", number()},
       {"parts", parts},
       {"exposed", map_of(number())},
       {"stage_waits", list_of(number())},
       {"link_bytes", links},
       {"steps?", whole()},
       {"hours?", number()},
       {"device_hours?", number()},
       {"cost?", number()},
       {"currency?", text()},
       {"checkpoint_bytes", whole()},
       {"checkpoint_seconds?", number()},
       {"what_if?", object_of({{"assumed", text()}, {"seconds_as_filed", number()}})}});
}

Json plan_schema() {
  const Json collective = object_of({{"kind", text()},
                                     {"axes", text()},
                                     {"ranks", whole()},
                                     {"calls", whole()},
                                     {"bytes", whole()}});
  return object_of(
      {{"rank", whole()},
       {"ranks", whole()},
       {"parameters", whole()},
       {"zero_stage", whole()},
       {"programs", whole()},
       {"memory", memory_schema()},
       {"traffic", object_of({{"bytes", whole()}, {"collectives", list_of(collective)}})},
       {"time?", time_schema()},
       {"warnings", list_of(text())}});
}

Json search_schema() {
  const Json memory = object_of({{"device", whole()}, {"host", whole()}});
  const Json layout = object_of({{"layout", text()},
                                 {"keys", {{"type", "object"}}},
                                 {"seconds", number()},
                                 {"memory", memory}});
  const Json choice =
      object_of({{"choice", text()},
                 {"reason", text()},
                 {"seconds?", number()},
                 {"memory?", memory},
                 {"at_least?", object_of({{"seconds", number()}, {"memory", memory}})}});
  return object_of({{"search", object_of({{"machine", text()},
                                          {"nodes", whole()},
                                          {"batch", whole()},
                                          {"counts", map_of(whole())},
                                          {"proved", truth()},
                                          {"least_seconds", number()},
                                          {"layouts", list_of(layout)},
                                          {"why_not", list_of(choice)},
                                          {"config?", text()}})}});
}

Json table_schema() {
  const Json line =
      object_of({{"part", text()}, {"course", whole()}, {"planned", whole()}, {"why", text()}});
  const Json row =
      object_of({{"model", text()},
                 {"parameters", whole()},
                 {"zero_stage", whole()},
                 {"gpus", whole()},
                 {"row_tokens", whole()},
                 {"recompute", text()},
                 {"course", whole()},
                 {"planned", whole()},
                 {"fullest", text()},
                 {"lines", list_of(line)},
                 {"fits", map_of(object_of({{"course", truth()}, {"planned", truth()}}))},
                 {"seconds?", number()},
                 {"waits?", number()}});
  const Json stated = object_of({{"zero_stage", whole()},
                                 {"stated", number()},
                                 {"formula", number()},
                                 {"planned", number()}});
  return object_of({{"table", object_of({{"rows", list_of(row)},
                                         {"stated?", list_of(stated)},
                                         {"two_gpus?", list_of(row)}})}});
}

Json inspect_schema() {
  return object_of({{"kind", {{"enum", {"adapter", "checkpoint", "data", "import", "model"}}}},
                    {"path", text()},
                    {"facts", list_of(object_of({{"name", text()}, {"value", text()}}))},
                    {"tensors?", list_of(object_of({{"name", text()}, {"value", text()}}))}});
}

/// Makes the schema of the answer of `command` if it succeeds.
Json done_schema(const char* command, Json result) {
  return object_of({{"format", {{"const", kFormat}}},
                    {"version", {{"const", kVersion}}},
                    {"command", {{"const", command}}},
                    {"exit_code", {{"const", 0}}},
                    {"result", std::move(result)}});
}

}  // namespace

Answer::Answer(const std::vector<std::string>& arguments) {
  const auto end = std::find(arguments.begin(), arguments.end(), "--");
  if (std::find(arguments.begin(), end, "--json") != end) silenced_ = std::cout.rdbuf(&no_output());
}

Answer::~Answer() {
  give_up();
}

void Answer::add_option(CLI::App& command) {
  command.add_flag("--json")->description(
      "answer with one JSON object (its schema: ftrun schema --answers)");
}

void Answer::give_up() {
  if (silenced_ != nullptr) std::cout.rdbuf(std::exchange(silenced_, nullptr));
}

void Answer::print(int exit_code) {
  if (!is_wanted()) return;
  write({{"exit_code", exit_code}, {"result", result_}});
}

void Answer::print_failure(const std::exception& failure) {
  if (!is_wanted()) return;
  write({{"exit_code", static_cast<int>(as_error(failure).code())},
         {"error", failure_json(failure)}});
}

/// Prints the answer. Bytes that are not UTF-8 (for example in file names) are replaced.
void Answer::write(Json answer) {
  give_up();
  Json whole{{"format", kFormat}, {"version", kVersion}, {"command", command_}};
  whole.update(answer);
  std::cout << whole.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
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
  const Json failed = object_of({{"format", {{"const", kFormat}}},
                                 {"version", {{"const", kVersion}}},
                                 {"command", text()},
                                 {"exit_code", {{"type", "integer"}, {"minimum", 1}}},
                                 {"error", error_schema()}});
  const Json schema{
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", "What ftrun answers with --json"},
      {"oneOf",
       {done_schema("check", check_schema()), done_schema("plan", plan_schema()),
        done_schema("plan", search_schema()), done_schema("plan", table_schema()),
        done_schema("inspect", inspect_schema()),
        done_schema("verify", object_of({{"path", text()}, {"undamaged", {{"const", true}}}})),
        done_schema("convert", object_of({{"from", text()}, {"to", text()}})), failed}}};
  return schema.dump(2) + "\n";
}

}  // namespace ftrun
