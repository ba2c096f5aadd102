#include "base/packed_values.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launchers.h"

namespace ftrun::cuda {

namespace {

constexpr int kUnpackThreads = 256;

/// Handed over as a parameter of the kernel: no copy to wait for.
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

/// PackedFormat, as far as unpacking asks for it.
struct Records {
  const unsigned char* data;
  int64_t bytes;
  int block, scales_offset;
  bool int8, holds_scale_codes;
  float int8_step;
};

__device__ inline float read_float(const unsigned char* from) { return *reinterpret_cast<const float*>(from); }

__device__ inline float scale_of(const Records& records, const unsigned char* record, int place, const CodeValues& values) {
  const unsigned char* const behind = record + records.scales_offset;
  if (!records.holds_scale_codes) return read_float(behind + place * sizeof(float));
  // Two roundings, as on the CPU.
  return __fadd_rn(__fmul_rn(values.scales[behind[place]], read_float(behind + kScaleOfScalesOffset)), read_float(behind + kScaleOffsetOffset));
}

// A row of the block of the matrix each.
template <class T>
__global__ void unpack_rows(Records records, CodeValues values, T* out, int64_t columns, int64_t first_row, int64_t first_column,
                            int64_t width) {
  const int64_t begin = (first_row + blockIdx.x) * columns + first_column;
  T* const to = out + blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const int64_t element = begin + i;
    const int at = static_cast<int>(element % kPackedRecord);
    const unsigned char* const record = records.data + element / kPackedRecord * records.bytes;
    const float scale = scale_of(records, record, at / records.block, values);
    float value;
    if (records.int8) {
      value = __fmul_rn(__fmul_rn(static_cast<float>(static_cast<signed char>(record[at])), scale), records.int8_step);
    } else {
      const unsigned char pair = record[at / 2];
      value = __fmul_rn(values.nf4[at % 2 == 0 ? pair >> 4 : pair & 15], scale);
    }
    Floats<1> one;
    one[0] = value;
    store(to + i, one);
  }
}

}  // namespace

void unpack(DType dtype, const Unpack& u, cudaStream_t stream) {
  const PackedFormat& format = u.format;
  const Records records{static_cast<const unsigned char*>(u.records), format.record_bytes(), static_cast<int>(format.block),
                        static_cast<int>(format.scales_offset()), format.kind == PackedFormat::Kind::kInt8, format.holds_scale_codes(), kInt8Step};
  const CodeValues values = code_values();
  with_type(dtype, [&]<class T>(T) {
    launch({dim3(blocks(u.rows)), dim3(threads_for(u.width, kUnpackThreads)), 0, stream}, unpack_rows<T>, records, values, static_cast<T*>(u.out),
           u.columns, u.first_row, u.first_column, u.width);
  });
}

}  // namespace ftrun::cuda
