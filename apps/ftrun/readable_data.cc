#include "readable_data.h"

#include "data/check_headers.h"
#include "inputs/sequence_options.h"

namespace ftrun {

bool has_readable_data(const Config& config) {
  const SequenceSetOptions options = sequence_options(config);
  TokenFileOptions files;
  files.format = options.format;
  files.dtype = options.dtype;
  return !config.data.train.empty() &&
         check_headers(config.data.train, files, std::nullopt).empty();
}

}  // namespace ftrun
