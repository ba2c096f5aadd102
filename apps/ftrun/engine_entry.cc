#include "exec/train.h"

/// The engine's one entry point, called by bin/ftrun after it has loaded this library.
extern "C" __attribute__((visibility("default"))) int ftrun_engine_train(
    const ftrun::TrainRequest* request) {
  return ftrun::train(*request);
}
