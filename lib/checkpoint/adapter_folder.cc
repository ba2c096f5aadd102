#include "checkpoint/adapter_folder.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/weight_conversion.h"

namespace ftrun {

AdapterFolder::AdapterFolder(std::string folder) : folder_(std::move(folder)) {
  const std::string file = folder_ + "/adapter_model.safetensors";
  if (!posix_files().exists(file)) {
    const bool pickled = posix_files().exists(folder_ + "/adapter_model.bin");
    throw Error(ExitCode::kBadInput,
                cat(file, ": does not exist",
                    pickled ? "; adapter_model.bin is a pickle, which is not read" : ""),
                pickled ? "save it again with safe_serialization=True"
                        : "give the folder of an adapter in PEFT's layout (a run that resumes "
                          "needs none: --set adapter.path=\"\")");
  }
  file_ = std::make_unique<SafetensorsFile>(file);
}

bool AdapterFolder::has_equal_tensors(const std::string& one, const std::string& other) const {
  const StoredTensor &first = file_->at(one), &second = file_->at(other);
  const std::span<const std::byte> a = file_->bytes(first), b = file_->bytes(second);
  return first.dtype == second.dtype && std::equal(a.begin(), a.end(), b.begin(), b.end());
}

void AdapterFolder::read_f32(const std::string& name, int64_t begin, int64_t end,
                             std::span<float> out) const {
  const StoredTensor& stored = file_->at(name);
  require(begin >= 0 && begin <= end && end <= stored.elements &&
              static_cast<int64_t>(out.size()) == end - begin,
          "the range lies inside the tensor, and `out` has its size");
  convert_to_f32(stored.dtype, file_->bytes(stored).data() + begin * dtype_bytes(stored.dtype),
                 out);
}

}  // namespace ftrun
