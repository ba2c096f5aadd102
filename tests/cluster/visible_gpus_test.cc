#include "cluster/visible_gpus.h"

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// A folder with device files, like /dev.
class Devices {
 public:
  explicit Devices(const std::vector<std::string>& files) {
    for (const std::string& file : files) std::ofstream(folder_ / file).put('x');
  }
  int visible(const std::optional<std::string>& named = {}) const {
    return count_visible_gpus(
        [&](const std::string& name) {
          return name == "CUDA_VISIBLE_DEVICES" ? named : std::nullopt;
        },
        folder_.path());
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST_CASE("GPUs are counted by their files, and there is none without the driver's own file") {
  CHECK(Devices(
            {"nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia0", "nvidia1", "nvidia12", "null"})
            .visible() == 3);
  CHECK(Devices({"nvidia0", "nvidia1"}).visible() == 0);
  CHECK(Devices({"null"}).visible() == 0);
  CHECK(Devices({"dxg"}).visible() == 1);
}

TEST_CASE("CUDA_VISIBLE_DEVICES says which GPUs a process sees") {
  const Devices two({"nvidiactl", "nvidia0", "nvidia1"});
  CHECK(two.visible("1") == 1);
  CHECK(two.visible("0,1") == 2);
  CHECK(two.visible("GPU-5f3c,GPU-77aa") == 2);
  CHECK(two.visible("MIG-1,MIG-2,MIG-3") == 3);
  for (const char* none : {"", "-1", "NoDevFiles", "none"}) CHECK(two.visible(none) == 0);
  CHECK(two.visible("0,-1,1") == 1);
  CHECK(Devices({"null"}).visible("0") == 0);
}

}  // namespace
}  // namespace ftrun
