#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/problem.h"

namespace ftrun {

/// RefusedConfig is the Error of a config, or of a checkpoint, with all of its problems, which
/// --json lists one by one.
class RefusedConfig : public Error {
 public:
  RefusedConfig(const Error& error, std::vector<Problem> problems)
      : Error(error), problems_(std::move(problems)) {}
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

}  // namespace ftrun
