#include "kernels/cpu/matmul_libraries.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <csignal>
#include <mutex>
#include <new>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "kernels/choose_matmul_library.h"
#include "kernels/cpu/cpu_vendor.h"
#include "kernels/cpu/operand_memory.h"

// Declares functions of the BLAS inside libtorch_cpu (MKL with 32-bit integers).
extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc);
void gemm_bf16bf16f32_(const char* transa, const char* transb, const int* m, const int* n,
                       const int* k, const float* alpha, const ftrun::BFloat16* a, const int* lda,
                       const ftrun::BFloat16* b, const int* ldb, const float* beta, float* c,
                       const int* ldc);
int MKL_Set_Num_Threads_Local(int threads);
}

namespace ftrun {

namespace {

char blas_letter(bool transpose) {
  return transpose ? 'T' : 'N';
}

/// SignalBlocker delays signals to the calling thread while it exists. Calls of oneDNN need it: its
/// fp32 kernels for AVX-512 use the stack pointer as an additional register that points into their
/// buffers on the heap, so the frame of a signal handler would overwrite the memory before these
/// buffers. That the kernels of MKL and OpenBLAS never do so is not known, so multiply_with()
/// delays signals for all libraries in fp32 and bf16, with two system calls for each tile. In fp64,
/// which only tests have, it delays none.
class SignalBlocker {
 public:
  SignalBlocker() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalBlocker() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlocker(const SignalBlocker&) = delete;
  SignalBlocker& operator=(const SignalBlocker&) = delete;

 private:
  sigset_t before_{};
};

// --- MKL: column-major. A row-major matrix is its transpose there, and c^T = op(b)^T op(a)^T. ---

template <class S, class R, class Function>
void multiply_column_major(const MatmulCall<S, R>& p, Function function) {
  const char left = blas_letter(p.transpose_b), right = blas_letter(p.transpose_a);
  const R one = 1;
  // Calls run on one thread anyway, but MKL must know it: on some Intel CPUs where it uses its AVX2
  // kernels, its results have other bits if it believes that it has more threads. The setting
  // affects only the calling thread and is cheap.
  MKL_Set_Num_Threads_Local(1);
  function(&left, &right, &p.n, &p.m, &p.k, &one, p.b, &p.ldb, p.a, &p.lda, &p.beta, p.c, &p.ldc);
}

// --- oneDNN: row-major, 64-bit sizes; the same two functions since its first version. ---

using OneDnnGemm = int (*)(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha,
                           const void* a, int64_t lda, const void* b, int64_t ldb, float beta,
                           float* c, int64_t ldc);

constexpr int kOneDnnSuccess = 0, kOneDnnOutOfMemory = 1;
/// dnnl_cpu_isa_avx512_core: a bit for each instruction set.
constexpr int kOneDnnAvx512 = 0x27;

struct OneDnn {
  OneDnnGemm fp32 = nullptr;
  OneDnnGemm bf16 = nullptr;
  /// The library can multiply bf16 here. The function for it exists on every CPU, but fails where
  /// oneDNN does not use AVX-512.
  bool multiplies_bf16 = false;
  /// Threads keep the memory of packed operands (operand_memory.h). Otherwise the library allocates
  /// it anew for each multiplication, which makes steps up to 1.45 times as long.
  bool keeps_operand_memory = false;
  std::string version;
};

template <class Function>
Function find_symbol(void* handle, const char* name) {
  return reinterpret_cast<Function>(::dlsym(handle, name));
}

OneDnn load_onednn() {
  OneDnn library;
  void* const handle = open_matmul_library(MatmulLibrary::kOneDnn).handle;
  if (handle == nullptr) return library;
  library.keeps_operand_memory = OperandMemoryScope::redirect(handle);
  library.fp32 = find_symbol<OneDnnGemm>(handle, "dnnl_sgemm");
  library.bf16 = find_symbol<OneDnnGemm>(handle, "dnnl_gemm_bf16bf16f32");
  // dnnl_get_effective_cpu_isa() returns the instruction sets that oneDNN may use, which its
  // environment variables can restrict. A trial multiplication would compile kernels that an fp32
  // run never calls, which takes a twentieth of a rank's start.
  using InstructionSets = int (*)();
  const auto instruction_sets = find_symbol<InstructionSets>(handle, "dnnl_get_effective_cpu_isa");
  library.multiplies_bf16 = library.bf16 != nullptr && instruction_sets != nullptr &&
                            (instruction_sets() & kOneDnnAvx512) == kOneDnnAvx512;
  using Version = const int* (*)();
  if (const auto version = find_symbol<Version>(handle, "dnnl_version")) {
    const int* const parts = version();
    library.version = cat(parts[0], ".", parts[1], ".", parts[2]);
  }
  return library;
}

const OneDnn& onednn() {
  static const OneDnn library = load_onednn();
  return library;
}

template <class S>
void multiply_onednn(OneDnnGemm function, const MatmulCall<S, float>& p) {
  const OperandMemoryScope scope;
  const int status = function(blas_letter(p.transpose_a), blas_letter(p.transpose_b), p.m, p.n, p.k,
                              1.0F, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
  // The call can run out of memory, because oneDNN allocates memory for packed operands and for
  // compiled kernels.
  if (status == kOneDnnOutOfMemory) throw std::bad_alloc();
  if (status != kOneDnnSuccess)
    throw Error(ExitCode::kEnvironment, cat("oneDNN cannot multiply: its status is ", status),
                "raise the memory limit (ulimit -v), let the process have memory that it may "
                "execute, or set kernels.products: mkl");
}

// --- OpenBLAS: the C interface of BLAS, in the wheel with a prefix before its names. ---

using CblasGemm = void (*)(int order, int transa, int transb, int m, int n, int k, float alpha,
                           const float* a, int lda, const float* b, int ldb, float beta, float* c,
                           int ldc);
constexpr int kCblasRowMajor = 101, kCblasNoTrans = 111, kCblasTrans = 112;

struct OpenBlas {
  CblasGemm fp32 = nullptr;
  std::string version;
};

/// Returns the second word of "OpenBLAS 0.3.21 DYNAMIC_ARCH ...".
std::string parse_openblas_version(const char* config) {
  std::istringstream words(config);
  std::string name, version;
  words >> name >> version;
  return version;
}

OpenBlas load_openblas() {
  OpenBlas library;
  void* const handle = open_matmul_library(MatmulLibrary::kOpenBlas).handle;
  if (handle == nullptr) return library;
  for (const std::string prefix : {"scipy_", ""}) {
    const auto function = [&](const char* name) { return prefix + name; };
    const auto multiply = find_symbol<CblasGemm>(handle, function("cblas_sgemm").c_str());
    using SetThreads = void (*)(int);
    const auto set_threads =
        find_symbol<SetThreads>(handle, function("openblas_set_num_threads").c_str());
    using Config = const char* (*)();
    const auto config = find_symbol<Config>(handle, function("openblas_get_config").c_str());
    if (multiply == nullptr || set_threads == nullptr || config == nullptr) continue;
    set_threads(1);
    library = {multiply, parse_openblas_version(config())};
    break;
  }
  return library;
}

const OpenBlas& openblas() {
  static const OpenBlas library = load_openblas();
  return library;
}

int cblas_letter(bool transpose) {
  return transpose ? kCblasTrans : kCblasNoTrans;
}

// --- the rule ---

/// Returns whether the CPU's vdpbf16ps has half the rate of fp32, as on Intel's CPUs from Sapphire
/// Rapids on (docs/benchmarks.md). These have matrix units for bf16, but virtual machines may hide
/// them. Intel's only other CPUs with this instruction (Cooper Lake) have no avx512_fp16.
bool has_slow_vdpbf16ps(const CpuTraits& cpu) {
  return is_intel(cpu.vendor) && cpu.avx512_fp16;
}

std::optional<MatmulLibrary> choose_bf16_library(const CpuTraits& cpu,
                                                 const AvailableLibraries& available) {
  if (cpu.isa < Isa::kAvx512) return std::nullopt;
  if (cpu.amx_bf16) return MatmulLibrary::kMkl;
  if (cpu.avx512_bf16 && available.onednn && !has_slow_vdpbf16ps(cpu))
    return MatmulLibrary::kOneDnn;
  return std::nullopt;
}

/// RuleInUse holds the rule that matrix multiplications follow; empty until it is first needed or
/// set.
struct RuleInUse {
  std::mutex mutex;
  std::optional<MatmulRule> rule;
};

RuleInUse& rule_in_use() {
  static RuleInUse in_use;
  return in_use;
}

std::string describe_rule(const std::optional<MatmulLibrary>& library) {
  return library ? describe_matmul_library(*library) : "widened to fp32";
}

std::string describe_attention(Isa isa) {
  if (isa == Isa::kAmx) return std::string(kOnMatrixUnits);
  return isa == Isa::kAvx512Bf16 ? "bf16 by vdpbf16ps" : "bf16 widened to fp32";
}

/// Returns the name of the library that the rule prefers and that cannot be loaded; "" if there is
/// none.
std::string missing_library(const CpuTraits& cpu, const MatmulRule& rule) {
  const MatmulRule preferred = choose_matmul_rule(cpu, {});
  if (preferred.fp32 != rule.fp32) return std::string(matmul_library_name(preferred.fp32));
  if (preferred.bf16 == rule.bf16 || has_matmul_library(*preferred.bf16)) return "";
  return std::string(matmul_library_name(*preferred.bf16));
}

/// Returns the rule for the libraries that can be called here. Loads only libraries that a rule
/// names. Throws Error(kEnvironment) if a pinned library cannot be called.
MatmulRule choose_available_rule(const CpuTraits& cpu, std::optional<MatmulLibrary> pinned) {
  if (pinned) {
    check_matmul_library(*pinned);
    if (!has_matmul_library(*pinned))
      throw matmul_library_error(*pinned, "it lacks the functions that multiply matrices");
  }
  AvailableLibraries available;
  for (;;) {
    MatmulRule rule = choose_matmul_rule(cpu, available, pinned);
    const auto lacks = [&](MatmulLibrary library) {
      return (rule.fp32 == library || rule.bf16 == library) && !has_matmul_library(library);
    };
    if (lacks(MatmulLibrary::kOneDnn))
      available.onednn = false;
    else if (lacks(MatmulLibrary::kOpenBlas))
      available.openblas = false;
    else {
      if (rule.bf16 && !has_bf16_matmul(*rule.bf16)) rule.bf16.reset();
      return rule;
    }
  }
}

/// Returns whether the process may map as much executable memory as oneDNN reserves for its fp32
/// kernels, and some more. A failed compilation of oneDNN is final, for the process and its forks.
bool can_map_code() {
  constexpr size_t kBytes = 32 << 20;
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE | PROT_EXEC,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory != MAP_FAILED && ::munmap(memory, kBytes) == 0;
}

}  // namespace

CpuTraits detect_cpu_traits() {
  CpuTraits cpu;
  cpu.vendor = cpu_vendor();
  cpu.isa = isa_in_use();
  cpu.avx512_bf16 = __builtin_cpu_supports("avx512bf16");
  cpu.avx512_fp16 = __builtin_cpu_supports("avx512fp16");
  cpu.amx_bf16 = __builtin_cpu_supports("amx-bf16");
  return cpu;
}

MatmulRule choose_matmul_rule(const CpuTraits& cpu, const AvailableLibraries& available,
                              std::optional<MatmulLibrary> pinned) {
  MatmulRule rule;
  rule.bf16 = choose_bf16_library(cpu, available);
  if (pinned) {
    rule.fp32 = *pinned;
    if (rule.bf16 && rule.bf16 != pinned) rule.bf16.reset();
    return rule;
  }
  if (is_amd(cpu.vendor) && cpu.isa >= Isa::kAvx512) {
    if (available.onednn)
      rule.fp32 = MatmulLibrary::kOneDnn;
    else if (available.openblas)
      rule.fp32 = MatmulLibrary::kOpenBlas;
  }
  return rule;
}

MatmulRule matmul_rule_in_use() {
  RuleInUse& in_use = rule_in_use();
  const std::lock_guard lock(in_use.mutex);
  if (!in_use.rule) in_use.rule = choose_available_rule(detect_cpu_traits(), std::nullopt);
  return *in_use.rule;
}

void set_matmul_rule(const MatmulRule& rule) {
  RuleInUse& in_use = rule_in_use();
  const std::lock_guard lock(in_use.mutex);
  in_use.rule = rule;
}

void multiply_with(MatmulLibrary library, const MatmulCall<float, float>& p) {
  const SignalBlocker held_back;
  switch (library) {
    case MatmulLibrary::kMkl:
      return multiply_column_major(p, sgemm_);
    case MatmulLibrary::kOneDnn:
      return multiply_onednn(onednn().fp32, p);
    case MatmulLibrary::kOpenBlas:
      return openblas().fp32(kCblasRowMajor, cblas_letter(p.transpose_a),
                             cblas_letter(p.transpose_b), p.m, p.n, p.k, 1.0F, p.a, p.lda, p.b,
                             p.ldb, p.beta, p.c, p.ldc);
  }
}

void multiply_with(MatmulLibrary library, const MatmulCall<double, double>& p) {
  require(library == MatmulLibrary::kMkl, "fp64 is multiplied by MKL");
  multiply_column_major(p, dgemm_);
}

void multiply_with(MatmulLibrary library, const MatmulCall<BFloat16, float>& p) {
  const SignalBlocker held_back;
  if (library == MatmulLibrary::kMkl) return multiply_column_major(p, gemm_bf16bf16f32_);
  require(library == MatmulLibrary::kOneDnn, "bf16 is multiplied by MKL or oneDNN");
  multiply_onednn(onednn().bf16, p);
}

bool has_bf16_matmul(MatmulLibrary library) {
  return library == MatmulLibrary::kMkl ||
         (library == MatmulLibrary::kOneDnn && onednn().multiplies_bf16);
}

bool has_matmul_library(MatmulLibrary library) {
  switch (library) {
    case MatmulLibrary::kMkl:
      return true;
    case MatmulLibrary::kOneDnn:
      return onednn().fp32 != nullptr && onednn().bf16 != nullptr;
    case MatmulLibrary::kOpenBlas:
      return openblas().fp32 != nullptr;
  }
  return false;
}

std::string describe_matmul_library(MatmulLibrary library) {
  std::string text(matmul_library_name(library));
  if (library == MatmulLibrary::kOneDnn) {
    text += " " + onednn().version;
    if (!onednn().keeps_operand_memory) text += " (allocates memory for each multiplication)";
  }
  if (library == MatmulLibrary::kOpenBlas) text += " " + openblas().version;
  return text;
}

MatmulLibrariesInUse choose_matmul_library(std::optional<MatmulLibrary> pinned,
                                           std::optional<bool> attention_on_matrix_units) {
  if (attention_on_matrix_units == true && can_run(Isa::kAmx)) set_isa(Isa::kAmx);
  if (attention_on_matrix_units == false && isa_in_use() == Isa::kAmx) set_isa(Isa::kAvx512);
  const CpuTraits cpu = detect_cpu_traits();
  const MatmulRule rule = choose_available_rule(cpu, pinned);
  set_matmul_rule(rule);
  return {describe_matmul_library(rule.fp32), describe_rule(rule.bf16), describe_attention(cpu.isa),
          pinned ? "" : missing_library(cpu, rule)};
}

void compile_fp32_kernels(MatmulLibrary library) {
  if (library != MatmulLibrary::kOneDnn) return;
  // oneDNN compiles its kernels in two sets: one with the first small multiplication, the other
  // with the first one of 2 to 15 rows by a transposed matrix. Both are too small for a second
  // thread.
  constexpr int kSide = 16;
  const std::vector<float> operand(kSide * kSide);
  std::vector<float> result(kSide * kSide);
  for (const int rows : {kSide, 2})
    multiply_with(library, MatmulCall<float, float>{.transpose_b = rows < kSide,
                                                    .m = rows,
                                                    .n = kSide,
                                                    .k = kSide,
                                                    .a = operand.data(),
                                                    .lda = kSide,
                                                    .b = operand.data(),
                                                    .ldb = kSide,
                                                    .c = result.data(),
                                                    .ldc = kSide});
}

void compile_chosen_fp32_kernels(std::optional<MatmulLibrary> pinned) {
  const MatmulLibrary library = choose_available_rule(detect_cpu_traits(), pinned).fp32;
  if (can_map_code()) compile_fp32_kernels(library);
}

}  // namespace ftrun
