#include "config/schema_docs.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "config/field_value.h"
#include "config/schema.h"
#include "config/unsupported.h"
#include "config/write.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kIntroduction = R"(# Config reference

<!-- Generated from the schema in lib/config; `ftrun schema --markdown` prints it. Do not edit. -->

This page explains how to write a config, and lists each key with type, default, unit and meaning.

A config file is JSON (comments and trailing commas are allowed) or YAML.

* `--config` may be repeated; keys of a later file override those of an earlier one.
* `--set section.key=value` overrides all files; its value is read as YAML.
* A launcher file of Hugging Face Accelerate is read as the config that it represents.
* Some keys exclude each other: `train.steps` and `train.epochs`, a rate in `train` and in
  `optimizer.params`, `fp16` and `bf16`, and others. If they are set in different places, the later
  one (`--set` after the files) replaces the earlier one, with a notice. In one place they are an
  error.
* DeepSpeed's keys are at top level, as in a DeepSpeed config, so that one file serves both
  programs. The sections `model`, `data`, `adapter`, `quantization`, `train`, `parallel`,
  `elastic`, `partition`, `recompute`, `kernels`, `comm` and `export` are ftrun's own. So are the
  keys `output_dir`, `device` and `threads`, and in `checkpoint` the keys `every`, `every_minutes`,
  `background`, `if_busy`, `keep_last` and `keep_best`.
* Unknown keys are errors. Whole numbers may be written as `5e8`. Numbers and true/false in quotes
  are read, with a notice. With `"auto"` ftrun chooses the value, and prints it.
* `train_batch_size` = `train_micro_batch_size_per_gpu` × `gradient_accumulation_steps` ×
  data-parallel ranks. Set one or two of the three; ftrun computes the rest.
* The number of ranks is the first of these that is given: the launcher's number; `--nproc`; the
  product of the degrees in `parallel`, if `parallel.data` is a number; the data-parallel ranks
  that follow from the three batch keys, times the other degrees; the product of the other degrees.

`ftrun check --config FILE` reports every problem of a config with its position, and uses no device.
A run writes the whole config, with every default, to `config.yaml` in the run folder.

The column *does* shows what ftrun does with a key:

| word | meaning |
|---|---|
| yes | The key works. |
| ignored | The value is checked and has no effect. |
| not yet | The key works, except for the named feature, which ends a run with exit code 3. |
| refused | ftrun does not have the feature; a run that requests it ends with exit code 3. |
| GPUs: emulated | The key works on CPUs and emulated GPUs; no GPU has run it yet (a notice). |
)";

std::vector<std::string> accepted_words(const Field& field) {
  std::vector<std::string> words;
  for (const NumberKeyword& word : field.forms.words)
    if (word.remedy.empty()) words.push_back(word.word);
  return words;
}

std::string words_column(const Field& field) {
  const std::vector<std::string> words = accepted_words(field);
  return words.empty() ? "" : cat(" (or ", join(words, ", "), ")");
}

std::string type_text(const Field& field) {
  switch (field.type) {
    case FieldType::kBool:
      return "true/false";
    case FieldType::kInt:
      return "whole number" + words_column(field);
    case FieldType::kFloat:
      return "number";
    case FieldType::kText:
      return "text";
    case FieldType::kChoice:
      return join(field.choices, ", ");
    case FieldType::kTextList:
      if (field.forms.allows_named_lists)
        return "text, list of texts, or {NAME: text or list of texts}";
      return field.forms.allows_weights ? "text, or list of texts or of {path, weight}"
                                        : "text or list of texts";
    case FieldType::kIntList:
      return "list of whole numbers";
    case FieldType::kNumberPair:
      return "two numbers";
    case FieldType::kNumberList:
      return "list of numbers";
    case FieldType::kAnyValue:
      return "anything";
  }
  return "";
}

std::string range_column(const Field& field) {
  const NumberBounds& bounds = field.bounds;
  if (bounds.min && bounds.max)
    return cat(number_text(*bounds.min), bounds.excludes_max ? " to below " : " to ",
               number_text(*bounds.max));
  if (!bounds.min) return "";
  return cat(bounds.excludes_min ? "> " : "≥ ", number_text(*bounds.min));
}

std::string default_text(const Field& field) {
  if (!field.default_text.empty()) return field.default_text;
  if (field.type == FieldType::kAnyValue) return "";
  const std::string text = yaml_text(field.default_value);
  return text == "[]" || text == "\"\"" ? "none" : text;
}

const char* support_text(KeySupport support) {
  switch (support) {
    case KeySupport::kApply:
      return "yes";
    case KeySupport::kNotice:
      return "ignored";
    default:
      return "refused";
  }
}

std::string does_text(const Field& field) {
  const std::string not_yet = unsupported_part(field.path());
  const std::string does =
      not_yet.empty() ? support_text(field.support) : cat("not yet: ", not_yet);
  return is_only_emulated_on_gpus(field.path()) ? does + "; GPUs: emulated" : does;
}

std::string escape_cell(std::string text) {
  for (size_t i = text.find('|'); i != std::string::npos; i = text.find('|', i + 2))
    text.replace(i, 1, "\\|");
  return text;
}

std::string field_row(const Field& field) {
  std::string type = type_text(field);
  for (const std::string& part : {range_column(field), field.unit})
    if (!part.empty()) type += ", " + part;
  std::string doc = field.doc;
  if (!field.aliases.empty())
    doc += cat(doc.empty() ? "" : " ", "Also `", field.aliases.front(), "`.");
  if (!field.types.empty()) doc += cat(doc.empty() ? "" : " ", "(", join(field.types, ", "), ")");
  if (!field.no_effect_reason.empty())
    doc += cat(doc.empty() ? "" : " ", "No effect: ", field.no_effect_reason, ".");
  return cat("| `", field.name, "` | ", escape_cell(type), " | ", escape_cell(default_text(field)),
             " | ", does_text(field), " | ", escape_cell(doc), " |\n");
}

std::string section_table(const std::string& section, KeyOrigin origin, bool any_origin) {
  std::string rows;
  for (const Field& field : Schema::get().fields())
    if (field.section == section && (any_origin || field.origin == origin))
      rows += field_row(field);
  if (rows.empty()) return "";
  return "| key | value | default | does | meaning |\n|---|---|---|---|---|\n" + rows + "\n";
}

std::string section_chapter(const Section& section) {
  const char* does = section.support == KeySupport::kNotice ? " *Ignored.*"
                     : section.free_form                    ? " *Refused when on.*"
                                                            : "";
  const std::string plain = section.shorthand_key.empty()
                                ? ""
                                : cat(" A plain value is its `", section.shorthand_key, "`.");
  return cat("### `", section.path, "`\n\n", section.doc, plain, does, "\n\n",
             section_table(section.path, section.origin, true));
}

std::string section_chapters(KeyOrigin origin) {
  std::string out;
  for (const Section& section : Schema::get().sections())
    if (section.origin == origin) out += section_chapter(section);
  return out;
}

std::string legacy_chapter() {
  std::string out =
      "## Keys of older and other programs\n\nAccepted with a notice, without effect "
      "unless said.\n\n| key | why |\n|---|---|\n";
  for (const LegacyKey& key : Schema::get().legacy())
    out += cat("| `", key.section.empty() ? "" : key.section + ".", key.name, "` | ", key.reason,
               " |\n");
  return out;
}

Json value_json(const FieldValue& value) {
  return std::visit([](const auto& v) { return Json(v); }, value);
}

Json number_schema(const Field& field, const char* type) {
  Json out{{"type", type}};
  const NumberBounds& bounds = field.bounds;
  if (bounds.min) out[bounds.excludes_min ? "exclusiveMinimum" : "minimum"] = *bounds.min;
  if (bounds.max) out[bounds.excludes_max ? "exclusiveMaximum" : "maximum"] = *bounds.max;
  return out;
}

/// Makes a regular expression for names in any case, because those of JSON Schema have no flag for
/// this.
std::string any_case_pattern(const std::vector<std::string>& names) {
  std::vector<std::string> patterns;
  for (const std::string& name : names) {
    std::string pattern;
    for (const char c : name) {
      const auto byte = static_cast<unsigned char>(c);
      pattern += std::isalpha(byte) != 0 ? cat('[', static_cast<char>(std::toupper(byte)),
                                               static_cast<char>(std::tolower(byte)), ']')
                                         : cat(c);
    }
    patterns.push_back(pattern);
  }
  return cat("^(", join(patterns, "|"), ")$");
}

Json choice_schema(const Field& field) {
  const Json names{{"type", "string"}, {"enum", field.choices}};
  if (!field.forms.ignores_case) return names;
  const Json spelled{{"type", "string"}, {"pattern", any_case_pattern(field.choices)}};
  return {{"anyOf", Json::array({names, spelled})}};
}

/// Describes a path, or a path with its weight.
Json weighted_schema() {
  return {
      {"type", {"string", "object"}},
      {"properties",
       {{"path", {{"type", "string"}}}, {"weight", {{"type", "number"}, {"exclusiveMinimum", 0}}}}},
      {"required", {"path"}},
      {"additionalProperties", false}};
}

/// Describes files, or sets of files by name.
Json named_schema() {
  const Json text{{"type", "string"}};
  return {{"type", {"string", "array", "object"}},
          {"items", text},
          {"additionalProperties", {{"type", {"string", "array"}}, {"items", text}}}};
}

Json type_schema(const Field& field) {
  switch (field.type) {
    case FieldType::kBool:
      return {{"type", "boolean"}};
    case FieldType::kInt:
      return number_schema(field, "integer");
    case FieldType::kFloat:
      return number_schema(field, "number");
    case FieldType::kText:
      return {{"type", "string"}};
    case FieldType::kChoice:
      return choice_schema(field);
    case FieldType::kTextList:
      if (field.forms.allows_named_lists) return named_schema();
      return {{"type", {"string", "array"}},
              {"items", field.forms.allows_weights ? weighted_schema() : Json{{"type", "string"}}}};
    case FieldType::kIntList:
      return {{"type", "array"}, {"items", number_schema(field, "integer")}};
    case FieldType::kNumberPair:
      return {{"type", "array"},
              {"items", number_schema(field, "number")},
              {"minItems", 2},
              {"maxItems", 2}};
    case FieldType::kNumberList:
      return {{"type", "array"}, {"items", number_schema(field, "number")}};
    case FieldType::kAnyValue:
      return Json::object();
  }
  return Json::object();
}

/// Describes a field. "auto" is allowed for every key except texts; editors still check the other
/// values.
Json field_schema(const Field& field) {
  Json type = type_schema(field);
  const bool open = field.type == FieldType::kAnyValue || field.type == FieldType::kText;
  Json out;
  if (open && !field.forms.allows_null) {
    out = type;
  } else {
    Json choices = Json::array({type});
    if (!field.forms.words.empty())
      choices.push_back({{"type", "string"}, {"pattern", any_case_pattern(accepted_words(field))}});
    if (!open) choices.push_back({{"const", "auto"}});
    if (field.forms.allows_null || field.origin == KeyOrigin::kFtrun)
      choices.push_back({{"type", "null"}});
    out["anyOf"] = choices;
  }
  if (!field.doc.empty())
    out["description"] = field.doc + (field.unit.empty() ? "" : " [" + field.unit + "]");
  if (field.default_text.empty() && field.type != FieldType::kAnyValue)
    out["default"] = value_json(field.default_value);
  return out;
}

Json section_schema(const std::string& path);

/// Allows a word of the section's plain key in place of the section.
void allow_plain_word(Json& inner, const Section& section) {
  const Field& field = *Schema::get().find(section.path, section.shorthand_key);
  inner["type"] = {"object", "string", "boolean", "null"};
  inner["pattern"] = cat("^(", join(field.choices, "|"), "|auto)$");
}

void add_inner_sections(Json& properties, const std::string& path) {
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const Section& section : Schema::get().sections()) {
    if (section.path.rfind(prefix, 0) != 0) continue;
    const std::string name = section.path.substr(prefix.size());
    if (name.empty() || name.find('.') != std::string::npos) continue;
    Json inner = section.free_form ? Json{{"type", "object"}} : section_schema(section.path);
    inner["description"] = section.doc;
    if (section.nullable) inner["type"] = {"object", "null"};
    if (section.path == "zero_optimization") inner["type"] = {"object", "boolean"};
    if (!section.shorthand_key.empty()) allow_plain_word(inner, section);
    properties[name] = inner;
  }
}

Json section_schema(const std::string& path) {
  Json properties = Json::object();
  for (const Field& field : Schema::get().fields()) {
    if (field.section != path) continue;
    properties[field.name] = field_schema(field);
    for (const std::string& alias : field.aliases) properties[alias] = field_schema(field);
  }
  add_inner_sections(properties, path);
  for (const LegacyKey& key : Schema::get().legacy())
    if (key.section == path)
      properties[key.name] = {{"description", "Without effect: " + key.reason}};
  return {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
}

std::string surface_line(const Field& field) {
  std::vector<std::string> parts{
      field.path(),
      type_text(field),
      range_column(field),
      field.unit,
      field.type == FieldType::kAnyValue ? "" : yaml_text(field.default_value),
      field.origin == KeyOrigin::kFtrun ? "ftrun" : "deepspeed",
      support_text(field.support),
      join(field.aliases, ","),
      field.forms.allows_null ? "null" : "",
      join(field.types, ",")};
  return join(parts, "\t") + "\n";
}

}  // namespace

std::string config_markdown() {
  std::string out(kIntroduction);
  out += "\n## ftrun's own keys\n\n### Top level\n\n" + section_table("", KeyOrigin::kFtrun, false);
  out += section_chapters(KeyOrigin::kFtrun);
  out +=
      "## DeepSpeed's keys\n\n### Top level\n\n" + section_table("", KeyOrigin::kDeepSpeed, false);
  out += section_chapters(KeyOrigin::kDeepSpeed);
  return out + legacy_chapter();
}

std::string config_json_schema() {
  Json schema{{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", "ftrun config"}};
  schema.update(section_schema(""));
  schema["properties"]["$schema"] = {{"type", "string"}};
  return schema.dump(2) + "\n";
}

std::string config_surface() {
  std::string out;
  for (const Field& field : Schema::get().fields()) out += surface_line(field);
  for (const Section& section : Schema::get().sections())
    out += cat("section\t", section.path, "\t", support_text(section.support),
               section.free_form ? "\tfree" : "", section.nullable ? "\tnull" : "", "\n");
  for (const LegacyKey& key : Schema::get().legacy())
    out += cat("legacy\t", key.section.empty() ? "" : key.section + ".", key.name, "\n");
  return out;
}

}  // namespace ftrun
