#include <random>
#include <string>

#include "base/error.h"
#include "config/load.h"
#include "config/schema.h"
#include "helpers.h"
#include "sweep.h"

#include <catch2/catch.hpp>

// These tests change every key of the schema by one typing error. All such configs must be refused,
// and almost all messages must suggest the right key.

namespace ftrun {
namespace {

std::vector<std::string> names_one_edit_away(const std::string& name) {
  std::vector<std::string> out;
  for (size_t i = 0; i < name.size(); ++i) {
    out.push_back(name.substr(0, i) + name.substr(i + 1));        // a letter is missing
    out.push_back(name.substr(0, i) + name[i] + name.substr(i));  // a letter is doubled
    std::string changed = name;
    changed[i] = changed[i] == 'x' ? 'q' : 'x';
    out.push_back(changed);  // a letter is replaced
    if (i + 1 < name.size() && name[i] != name[i + 1]) {
      std::string swapped = name;
      std::swap(swapped[i], swapped[i + 1]);
      out.push_back(swapped);  // two letters are swapped
    }
  }
  return out;
}

// Returns the line that selects a section's type, so that the parameter belongs to that type.
std::string type_line(const Field& field) {
  if (field.section != "optimizer.params" && field.section != "scheduler.params") return "";
  const std::string fallback = field.section == "optimizer.params" ? "AdamW" : "WarmupLR";
  const std::string type = field.types.empty() ? fallback : field.types.front();
  return cat("\"type\": \"", type, "\", ");
}

std::string config_with(const Field& field, const std::string& key) {
  std::string text = cat("{\"", key, "\": 0}");
  std::string section = field.section;
  bool innermost = true;
  while (!section.empty()) {
    const size_t dot = section.rfind('.');
    const std::string name = dot == std::string::npos ? section : section.substr(dot + 1);
    section = dot == std::string::npos ? "" : section.substr(0, dot);
    text = cat("{", innermost ? type_line(field) : "", "\"", name, "\": ", text, "}");
    innermost = false;
  }
  return text;
}

}  // namespace

TEST_CASE("a key with one typing error is always refused, and almost always with the right key") {
  int typos = 0, corrected = 0;
  std::mt19937_64 random(47);
  std::string wrong;
  const Schema& schema = Schema::get();
  for (const Field& field : schema.fields()) {
    for (const std::string& typo : names_one_edit_away(field.name)) {
      const bool another_key = typo.empty() || schema.find(field.section, typo) != nullptr ||
                               schema.find_section(typo) != nullptr ||
                               schema.find_legacy(field.section, typo) != nullptr;
      if (another_key || random() % sweep_stride(1) != 0) continue;
      ++typos;
      const std::string text = config_with(field, typo);
      const LoadResult loaded = load_config_text("c.json", text);
      INFO(text);
      REQUIRE_FALSE(loaded.ok());
      bool right = false;
      for (const Problem& p : loaded.problems)
        right = right || p.message.ends_with("did you mean \"" + field.name + "\"?)");
      corrected += right ? 1 : 0;
      if (!right && wrong.size() < 2000) wrong += cat(field.path(), " <- ", typo, "\n");
    }
  }
  INFO("told " << corrected << " of " << typos << "; not: " << wrong);
  REQUIRE(typos > sweep_rounds(5000));
  REQUIRE(corrected >= (sweeps_all() ? 0.95 : 0.9) * typos);
}

}  // namespace ftrun
