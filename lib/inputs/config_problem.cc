#include "inputs/config_problem.h"

#include <utility>

#include "config/unsupported.h"

namespace ftrun {

Problem notice_about(const Origins& origins, const std::string& key, std::string message,
                     std::string remedy) {
  return {position_of_request(origins, key), std::move(message), std::move(remedy),
          Severity::kNotice};
}

Problem problem_at(Position at, const Error& error) {
  return {std::move(at), error.message(), error.remedy()};
}

}  // namespace ftrun
