#include "kernels/cpu/matmul.h"
#include "kernels/cpu/vector_kernels.h"
#include "requirements.h"

namespace ftrun {
namespace {

/// Selects an instruction set for the tests that need it, even if a faster one is available.
/// Returns `missing` if the CPU lacks it, otherwise "".
std::string select_isa(Isa isa, const char* missing) {
  if (!can_run(isa)) return missing;
  set_isa(isa);
  return "";
}

const testing::Requirement kAvx512("avx512", [] {
  return select_isa(Isa::kAvx512, "this CPU has no AVX-512 (F, BW, DQ and VL)");
});
const testing::Requirement kAvx512Bf16("avx512_bf16", [] {
  return select_isa(Isa::kAvx512Bf16, "this CPU has no avx512_bf16");
});
const testing::Requirement kMatrixUnits("matrix_units", [] {
  return select_isa(Isa::kAmx, "this CPU has no matrix units for bf16 (AMX)");
});

const testing::Requirement kAmx("amx", [] {
  return multiplies_bf16() ? "" : "this CPU has no matrix units for bf16 (AMX)";
});

}  // namespace
}  // namespace ftrun
