#include "kernels/cpu/products.h"

#include <dlfcn.h>

#include <csignal>
#include <mutex>
#include <new>
#include <sstream>

#include "base/error.h"
#include "kernels/cpu/cpu_vendor.h"
#include "kernels/products_in_use.h"

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

char letter(bool transpose) {
  return transpose ? 'T' : 'N';
}

/// SignalBlocker delays signals to the calling thread while it exists. Calls of oneDNN need it: its
/// fp32 kernels for AVX-512 use the stack pointer as an additional register that points into their
/// buffers on the heap, so the frame of a signal handler would overwrite the memory before these
/// buffers. The kernels of MKL and OpenBLAS are not known to do so, but multiply_with() delays
/// signals for all libraries in fp32 and bf16, with two system calls for each product. It does not
/// in fp64, which only MKL multiplies.
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
void multiply_column_major(const ProductCall<S, R>& p, Function function) {
  const char left = letter(p.transpose_b), right = letter(p.transpose_a);
  const R one = 1;
  // Calls run on one thread anyway, but MKL must know it: on some Intel CPUs where it uses its AVX2
  // kernels, its results have other bits if it believes that it has more threads. The setting
  // affects only the calling thread and is cheap.
  MKL_Set_Num_Threads_Local(1);
  function(&left, &right, &p.n, &p.m, &p.k, &one, p.b, &p.ldb, p.a, &p.lda, &p.beta, p.c, &p.ldc);
}

// --- oneDNN: row-major, 64-bit sizes; the same two functions since its first version. ---

using OneDnnProduct = int (*)(char transa, char transb, int64_t m, int64_t n, int64_t k,
                              float alpha, const void* a, int64_t lda, const void* b, int64_t ldb,
                              float beta, float* c, int64_t ldc);

constexpr int kOneDnnSuccess = 0, kOneDnnOutOfMemory = 1;
/// dnnl_cpu_isa_avx512_core: a bit for each instruction set.
constexpr int kOneDnnAvx512 = 0x27;

struct OneDnn {
  OneDnnProduct fp32 = nullptr;
  OneDnnProduct bf16 = nullptr;
  /// The library can multiply bf16 here. The function for it exists on every CPU, but fails where
  /// oneDNN does not use AVX-512.
  bool multiplies_bf16 = false;
  std::string version;
};

template <class Function>
Function symbol(void* handle, const char* name) {
  return reinterpret_cast<Function>(::dlsym(handle, name));
}

OneDnn load_onednn() {
  OneDnn library;
  void* const handle = open_product_library(ProductLibrary::kOneDnn).handle;
  if (handle == nullptr) return library;
  library.fp32 = symbol<OneDnnProduct>(handle, "dnnl_sgemm");
  library.bf16 = symbol<OneDnnProduct>(handle, "dnnl_gemm_bf16bf16f32");
  // dnnl_get_effective_cpu_isa() returns the instruction sets that oneDNN may use, which its
  // environment variables can restrict. A trial multiplication would compile kernels that an fp32
  // run never calls, which takes a twentieth of a rank's start.
  using InstructionSets = int (*)();
  const auto instruction_sets = symbol<InstructionSets>(handle, "dnnl_get_effective_cpu_isa");
  library.multiplies_bf16 = library.bf16 != nullptr && instruction_sets != nullptr &&
                            (instruction_sets() & kOneDnnAvx512) == kOneDnnAvx512;
  using Version = const int* (*)();
  if (const auto version = symbol<Version>(handle, "dnnl_version")) {
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
void multiply_onednn(OneDnnProduct function, const ProductCall<S, float>& p) {
  const int status = function(letter(p.transpose_a), letter(p.transpose_b), p.m, p.n, p.k, 1.0F,
                              p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
  // The call can run out of memory, because oneDNN allocates memory for packed operands and for
  // compiled kernels.
  if (status == kOneDnnOutOfMemory) throw std::bad_alloc();
  if (status != kOneDnnSuccess)
    throw Error(ExitCode::kEnvironment, cat("oneDNN cannot multiply: its status is ", status),
                "raise the memory limit (ulimit -v), let the process have memory that it may "
                "execute, or set kernels.products to mkl");
}

// --- OpenBLAS: the C interface of BLAS, in the wheel with a prefix before its names. ---

using CblasProduct = void (*)(int order, int transa, int transb, int m, int n, int k, float alpha,
                              const float* a, int lda, const float* b, int ldb, float beta,
                              float* c, int ldc);
constexpr int kCblasRowMajor = 101, kCblasNoTrans = 111, kCblasTrans = 112;

struct OpenBlas {
  CblasProduct fp32 = nullptr;
  std::string version;
};

/// Returns the second word of "OpenBLAS 0.3.21 DYNAMIC_ARCH ...".
std::string version_word(const char* config) {
  std::istringstream words(config);
  std::string name, version;
  words >> name >> version;
  return version;
}

OpenBlas load_openblas() {
  OpenBlas library;
  void* const handle = open_product_library(ProductLibrary::kOpenBlas).handle;
  if (handle == nullptr) return library;
  for (const std::string prefix : {"scipy_", ""}) {
    const auto function = [&](const char* name) { return prefix + name; };
    const auto product = symbol<CblasProduct>(handle, function("cblas_sgemm").c_str());
    using SetThreads = void (*)(int);
    const auto set_threads =
        symbol<SetThreads>(handle, function("openblas_set_num_threads").c_str());
    using Config = const char* (*)();
    const auto config = symbol<Config>(handle, function("openblas_get_config").c_str());
    if (product == nullptr || set_threads == nullptr || config == nullptr) continue;
    set_threads(1);
    library = {product, version_word(config())};
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

std::optional<ProductLibrary> bf16_rule(const CpuTraits& cpu, const LibrariesAtHand& at_hand) {
  if (cpu.isa < Isa::kAvx512) return std::nullopt;
  if (cpu.amx_bf16) return ProductLibrary::kMkl;
  if (cpu.avx512_bf16 && at_hand.onednn) return ProductLibrary::kOneDnn;
  return std::nullopt;
}

/// RuleInUse holds the rule that products follow; empty until it is first needed or set.
struct RuleInUse {
  std::mutex mutex;
  std::optional<ProductRule> rule;
};

RuleInUse& rule_in_use() {
  static RuleInUse in_use;
  return in_use;
}

std::string describe_rule(const std::optional<ProductLibrary>& library) {
  return library ? describe_product_library(*library) : "widened to fp32";
}

std::string describe_attention(Isa isa) {
  if (isa == Isa::kAmx) return std::string(kOnMatrixUnits);
  return isa == Isa::kAvx512Bf16 ? "bf16 by vdpbf16ps" : "bf16 widened to fp32";
}

/// Returns the name of the library that the rule prefers and that cannot be loaded; "" if there is
/// none.
std::string missing_library(const CpuTraits& cpu, const ProductRule& rule) {
  const ProductRule wanted = product_rule(cpu, {});
  if (wanted.fp32 != rule.fp32) return std::string(product_library_name(wanted.fp32));
  if (wanted.bf16 == rule.bf16 || has_product_library(*wanted.bf16)) return "";
  return std::string(product_library_name(*wanted.bf16));
}

/// Returns the rule for the libraries that can be called here. Loads only libraries that a rule
/// names.
ProductRule rule_at_hand(const CpuTraits& cpu, std::optional<ProductLibrary> pinned) {
  LibrariesAtHand at_hand;
  for (;;) {
    ProductRule rule = product_rule(cpu, at_hand, pinned);
    const auto lacks = [&](ProductLibrary library) {
      return (rule.fp32 == library || rule.bf16 == library) && !has_product_library(library);
    };
    if (lacks(ProductLibrary::kOneDnn))
      at_hand.onednn = false;
    else if (lacks(ProductLibrary::kOpenBlas))
      at_hand.openblas = false;
    else {
      if (rule.bf16 && !has_bf16_products(*rule.bf16)) rule.bf16.reset();
      return rule;
    }
  }
}

}  // namespace

CpuTraits this_cpu() {
  CpuTraits cpu;
  cpu.vendor = cpu_vendor();
  cpu.isa = isa_in_use();
  cpu.avx512_bf16 = __builtin_cpu_supports("avx512bf16");
  cpu.amx_bf16 = __builtin_cpu_supports("amx-bf16");
  return cpu;
}

ProductRule product_rule(const CpuTraits& cpu, const LibrariesAtHand& at_hand,
                         std::optional<ProductLibrary> pinned) {
  ProductRule rule;
  rule.bf16 = bf16_rule(cpu, at_hand);
  if (pinned) {
    rule.fp32 = *pinned;
    if (rule.bf16 && rule.bf16 != pinned) rule.bf16.reset();
    return rule;
  }
  if (is_amd(cpu.vendor) && cpu.isa >= Isa::kAvx512) {
    if (at_hand.onednn)
      rule.fp32 = ProductLibrary::kOneDnn;
    else if (at_hand.openblas)
      rule.fp32 = ProductLibrary::kOpenBlas;
  }
  return rule;
}

ProductRule product_rule_in_use() {
  RuleInUse& in_use = rule_in_use();
  const std::lock_guard lock(in_use.mutex);
  if (!in_use.rule) in_use.rule = rule_at_hand(this_cpu(), std::nullopt);
  return *in_use.rule;
}

void set_product_rule(const ProductRule& rule) {
  RuleInUse& in_use = rule_in_use();
  const std::lock_guard lock(in_use.mutex);
  in_use.rule = rule;
}

void multiply_with(ProductLibrary library, const ProductCall<float, float>& p) {
  const SignalBlocker held_back;
  switch (library) {
    case ProductLibrary::kMkl:
      return multiply_column_major(p, sgemm_);
    case ProductLibrary::kOneDnn:
      return multiply_onednn(onednn().fp32, p);
    case ProductLibrary::kOpenBlas:
      return openblas().fp32(kCblasRowMajor, cblas_letter(p.transpose_a),
                             cblas_letter(p.transpose_b), p.m, p.n, p.k, 1.0F, p.a, p.lda, p.b,
                             p.ldb, p.beta, p.c, p.ldc);
  }
}

void multiply_with(ProductLibrary library, const ProductCall<double, double>& p) {
  require(library == ProductLibrary::kMkl, "products of fp64 are MKL's");
  multiply_column_major(p, dgemm_);
}

void multiply_with(ProductLibrary library, const ProductCall<BFloat16, float>& p) {
  const SignalBlocker held_back;
  if (library == ProductLibrary::kMkl) return multiply_column_major(p, gemm_bf16bf16f32_);
  require(library == ProductLibrary::kOneDnn, "bf16 is multiplied by MKL or oneDNN");
  multiply_onednn(onednn().bf16, p);
}

bool has_bf16_products(ProductLibrary library) {
  return library == ProductLibrary::kMkl ||
         (library == ProductLibrary::kOneDnn && onednn().multiplies_bf16);
}

bool has_product_library(ProductLibrary library) {
  switch (library) {
    case ProductLibrary::kMkl:
      return true;
    case ProductLibrary::kOneDnn:
      return onednn().fp32 != nullptr && onednn().bf16 != nullptr;
    case ProductLibrary::kOpenBlas:
      return openblas().fp32 != nullptr;
  }
  return false;
}

std::string describe_product_library(ProductLibrary library) {
  std::string text(product_library_name(library));
  if (library == ProductLibrary::kOneDnn) text += " " + onednn().version;
  if (library == ProductLibrary::kOpenBlas) text += " " + openblas().version;
  return text;
}

ProductsInUse choose_products(std::optional<ProductLibrary> pinned,
                              bool attention_on_matrix_units) {
  if (pinned) {
    require_product_library(*pinned);
    if (!has_product_library(*pinned))
      throw product_library_error(*pinned, "it lacks the functions that multiply matrices");
  }
  if (attention_on_matrix_units && can_run(Isa::kAmx)) set_isa(Isa::kAmx);
  const CpuTraits cpu = this_cpu();
  const ProductRule rule = rule_at_hand(cpu, pinned);
  set_product_rule(rule);
  return {describe_product_library(rule.fp32), describe_rule(rule.bf16),
          describe_attention(cpu.isa), pinned ? "" : missing_library(cpu, rule)};
}

}  // namespace ftrun
