#include "engine/bench_machine.h"
#include "kernels/choose_matmul_library.h"
#include "training/train.h"

/// The engine's entry points, called by bin/ftrun after it has loaded this library.
extern "C" __attribute__((visibility("default"))) int ftrun_engine_train(
    const ftrun::TrainRequest* request) {
  return ftrun::train(*request);
}

extern "C" __attribute__((visibility("default"))) void ftrun_engine_bench(
    const ftrun::BenchRequest* request, ftrun::Machine* machine) {
  *machine = ftrun::bench_machine(*request);
}

extern "C" __attribute__((visibility("default"))) void ftrun_engine_compile_fp32_kernels(
    const ftrun::MatmulLibrary* pinned) {
  ftrun::compile_chosen_fp32_kernels(pinned == nullptr ? std::nullopt : std::optional(*pinned));
}
