#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/problem.h"

namespace ftrun {

/// ErrorWithProblems is an Error about a config or a checkpoint that also holds the list of its
/// problems, so that --json can list them one by one.
class ErrorWithProblems : public Error {
 public:
  ErrorWithProblems(const Error& error, std::vector<Problem> problems)
      : Error(error), problems_(std::move(problems)) {}
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

}  // namespace ftrun
