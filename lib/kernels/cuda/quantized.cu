#include "base/quantized_values.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"

namespace ftrun::cuda {

namespace {

constexpr int kDequantizeThreads = 256;

/// CodeValues holds the number of each code. It is passed as a parameter of the kernel, which needs
/// no copy to the device before.
struct CodeValues {
  float nf4[16];
  float scales[256];
};

CodeValues code_values() {
  CodeValues values;
  for (int i = 0; i < 16; ++i) values.nf4[i] = kNf4Values[static_cast<size_t>(i)];
  for (int i = 0; i < 256; ++i) values.scales[i] = dynamic_values()[static_cast<size_t>(i)];
  return values;
}

/// QuantizedRecords holds the parts of a QuantizedFormat that dequantizing needs.
struct QuantizedRecords {
  const unsigned char* data;
  int64_t bytes;
  int block, scales_offset;
  bool int8, holds_scale_codes;
  float int8_step;
};

__device__ inline float read_float(const unsigned char* from) {
  return *reinterpret_cast<const float*>(from);
}

__device__ inline float scale_of(const QuantizedRecords& records, const unsigned char* record,
                                 int place, const CodeValues& values) {
  const unsigned char* const scales = record + records.scales_offset;
  if (!records.holds_scale_codes) return read_float(scales + place * sizeof(float));
  // Multiplies and adds with two roundings, as the CPU does, not with a fused multiply-add.
  return __fadd_rn(
      __fmul_rn(values.scales[scales[place]], read_float(scales + kScaleOfScalesOffset)),
      read_float(scales + kScaleOffsetOffset));
}

/// QuantizedCodes holds the codes of V neighboring elements of a record, from element `at` on, a
/// multiple of V: 1, 4 or 8 bytes for int8, half of that for NF4.
template <int V>
struct QuantizedCodes {
  uint32_t words[2];

  __device__ void read(const QuantizedRecords& records, const unsigned char* record, int at) {
    const unsigned char* const from = record + (records.int8 ? at : at / 2);
    if constexpr (V == 1) {
      words[0] = *from;
      // The second element of a pair is in the lower bits; number() reads the bits of the first.
      if (!records.int8 && at % 2 == 1) words[0] <<= 4;
    } else if constexpr (V == 4) {
      words[0] = records.int8 ? *reinterpret_cast<const uint32_t*>(from)
                              : *reinterpret_cast<const uint16_t*>(from);
    } else {
      words[0] = *reinterpret_cast<const uint32_t*>(from);
      words[1] = records.int8 ? *reinterpret_cast<const uint32_t*>(from + 4) : 0;
    }
  }
  __device__ float int8(int i) const {
    return static_cast<float>(static_cast<signed char>(words[i / 4] >> i % 4 * 8 & 255U));
  }
  /// Dequantizes a code of NF4: of a pair the first is in the upper half of its byte.
  __device__ float nf4(int i, const float* values) const {
    return values[words[0] >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0)) & 15U];
  }
};

// Dequantizes a block of the matrix: one row for each thread block, V elements for each thread at a
// time. The result has the same bits for every V.
template <class T, int V>
__global__ void dequantize_rows(QuantizedRecords records, CodeValues values, T* out,
                                int64_t columns, int64_t first_row, int64_t first_column,
                                int64_t width) {
  // A warp reads kernel parameters at one index at a time, but shared memory at all 16 indices at
  // once.
  __shared__ float nf4[16];
  for (int i = threadIdx.x; i < 16; i += blockDim.x) nf4[i] = values.nf4[i];
  __syncthreads();
  const int64_t begin = (first_row + blockIdx.x) * columns + first_column;
  T* const to = out + blockIdx.x * width;
  for (int64_t i = V * static_cast<int64_t>(threadIdx.x); i < width;
       i += V * static_cast<int64_t>(blockDim.x)) {
    const int64_t element = begin + i;
    const int at = static_cast<int>(element % kQuantizedRecord);
    const unsigned char* const record = records.data + element / kQuantizedRecord * records.bytes;
    const float scale = scale_of(records, record, at / records.block, values);
    QuantizedCodes<V> codes;
    codes.read(records, record, at);
    Floats<V> numbers;
#pragma unroll
    for (int j = 0; j < V; ++j)
      numbers[j] = records.int8 ? __fmul_rn(__fmul_rn(codes.int8(j), scale), records.int8_step)
                                : __fmul_rn(codes.nf4(j, nf4), scale);
    store(to + i, numbers);
  }
}

}  // namespace

void dequantize(DType dtype, const DequantizeArguments& u, cudaStream_t stream) {
  const QuantizedFormat& format = u.format;
  const QuantizedRecords records{static_cast<const unsigned char*>(u.records),
                                 format.record_bytes(),
                                 static_cast<int>(format.block),
                                 static_cast<int>(format.scales_offset()),
                                 format.type == QuantizationType::kInt8,
                                 format.holds_scale_codes(),
                                 kInt8Step};
  const CodeValues values = code_values();
  with_type(dtype, [&]<class T>(T) {
    // Elements that are moved at once lie in one record, have one scale, and their codes are a
    // word.
    const bool fit = vectors_fit<T>(u.columns, u.out) && vectors_fit<T>(u.width) &&
                     vectors_fit<T>(u.first_column) &&
                     reinterpret_cast<uintptr_t>(u.records) % 4 == 0;
    with_vectors<T>(fit, [&](auto v) {
      constexpr int kAtOnce = decltype(v)::value;
      launch({dim3(blocks(u.rows)),
              dim3(threads_for(divide_up(u.width, kAtOnce), kDequantizeThreads)), 0, stream},
             dequantize_rows<T, kAtOnce>, records, values, static_cast<T*>(u.out), u.columns,
             u.first_row, u.first_column, u.width);
    });
  });
}

}  // namespace ftrun::cuda
