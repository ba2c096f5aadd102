#pragma once

#include <fstream>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "report/step_metrics.h"
#include "temporary_folder.h"
#include "thrown_error.h"

namespace ftrun {

inline void put_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// Returns a step with every ordinary field set.
inline StepMetrics example_step(int64_t step) {
  StepMetrics m;
  m.step = step;
  m.samples = step * 4;
  m.loss = 3.25 - 0.125 * static_cast<double>(step);
  m.gradient_norm = 1.25;
  m.learning_rate = 1e-5;
  m.tokens = 2048;
  m.tokens_per_second = 1024;
  m.step_seconds = 2;
  m.data_wait_seconds = 0.001;
  m.exposed_communication_seconds = 0.5;
  return m;
}

}  // namespace ftrun
