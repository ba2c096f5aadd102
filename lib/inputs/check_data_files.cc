#include "inputs/check_data_files.h"

#include <string>

#include "base/error.h"
#include "data/check_headers.h"
#include "data/conversations.h"
#include "inputs/config_problem.h"
#include "inputs/sequence_options.h"

namespace ftrun {

std::vector<Problem> check_data_files(const Config& config, std::optional<int64_t> vocab_rows) {
  const SequenceSetOptions options = sequence_options(config);
  std::vector<Problem> problems;
  const auto check = [&](const char* key, const std::vector<std::string>& paths) {
    std::vector<Error> errors = check_headers(paths, header_options(options), vocab_rows);
    if (errors.empty()) errors = check_conversation_lengths(paths, options);
    for (const Error& error : errors)
      problems.push_back(problem_at(config.origins.position(key), error));
  };
  check("data.train", config.data.train);
  check("data.validation", config.data.validation);
  return problems;
}

bool has_readable_data(const Config& config) {
  return !config.data.train.empty() &&
         check_headers(config.data.train, header_options(sequence_options(config)), std::nullopt)
             .empty();
}

}  // namespace ftrun
