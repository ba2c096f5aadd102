#include "config/problem.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace ftrun {

std::string to_text(const Position& at) {
  return at.line > 0 ? cat(at.file, ":", at.line, ":", at.column) : at.file;
}

std::string to_text(const Problem& problem) {
  const std::string position = to_text(problem.at);
  const char* kind = problem.severity == Severity::kError ? "error: " : "notice: ";
  std::string out = (position.empty() ? "config: " : position + ": ") + kind + problem.message;
  if (!problem.remedy.empty()) out += "\n  remedy: " + problem.remedy;
  return out;
}

std::string to_text(const UnsupportedRequest& request) {
  const std::string position = to_text(request.at);
  return cat(position.empty() ? "config" : position, ": not supported yet: ", request.feature, " (",
             request.key, ")");
}

bool has_errors(const std::vector<Problem>& problems) {
  return std::any_of(problems.begin(), problems.end(),
                     [](const Problem& p) { return p.severity == Severity::kError; });
}

void Problems::error(const Position& at, std::string message, std::string remedy) {
  add({at, std::move(message), std::move(remedy), Severity::kError});
}

void Problems::notice(const Position& at, std::string message, std::string remedy,
                      std::string key) {
  add({at, std::move(message), std::move(remedy), Severity::kNotice, std::move(key)});
}

void Problems::add(Problem problem) {
  if (reported_.insert(cat(to_text(problem.at), "\n", problem.message)).second)
    all_.push_back(std::move(problem));
}

std::vector<Problem> Problems::sorted() const {
  std::vector<std::string> files;
  for (const Problem& p : all_)
    if (std::find(files.begin(), files.end(), p.at.file) == files.end()) files.push_back(p.at.file);
  const auto key = [&](const Problem& p) {
    return std::tuple(std::find(files.begin(), files.end(), p.at.file) - files.begin(), p.at.line,
                      p.at.column);
  };
  std::vector<Problem> out = all_;
  std::stable_sort(out.begin(), out.end(),
                   [&](const Problem& a, const Problem& b) { return key(a) < key(b); });
  return out;
}

}  // namespace ftrun
