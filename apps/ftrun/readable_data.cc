#include "readable_data.h"

#include "data/check_headers.h"
#include "inputs/sample_options.h"

namespace ftrun {

bool has_readable_data(const Config& config) {
  const SampleSetOptions samples = sample_options(config);
  TokenFileOptions files;
  files.format = samples.format;
  files.dtype = samples.dtype;
  return !config.data.train.empty() &&
         check_headers(config.data.train, files, std::nullopt).empty();
}

}  // namespace ftrun
