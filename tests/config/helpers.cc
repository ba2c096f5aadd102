#include "helpers.h"

#include <catch2/catch.hpp>

namespace ftrun {

std::vector<std::string> problem_texts(const std::vector<Problem>& problems) {
  std::vector<std::string> out;
  for (const Problem& p : problems) out.push_back(to_text(p));
  return out;
}

std::vector<std::string> problems_of(const std::string& name, const std::string& text,
                                     const std::vector<std::string>& overrides) {
  return problem_texts(load_config_text(name, text, overrides).problems);
}

WrittenConfig written_of(const std::string& text, const std::vector<std::string>& overrides,
                         const std::string& name) {
  const LoadResult loaded = load_config_text(name, text, overrides);
  for (const std::string& line : problem_texts(loaded.problems)) UNSCOPED_INFO(line);
  REQUIRE(loaded.ok());
  return loaded.written;
}

Config config_of(const std::string& text, const std::vector<std::string>& overrides,
                 const std::string& name) {
  return with_defaults(written_of(text, overrides, name));
}

}  // namespace ftrun
