// This target reads the bytes as JSON if the first one opens an object, else as YAML, and resolves
// whatever can be read.

#include "config/load.h"
#include "config/resolve.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  return ftrun::fuzz::parse_or_abort([&] {
    const char* name = data[0] == '{' ? "c.json" : "c.yaml";
    const ftrun::LoadResult loaded =
        ftrun::load_config_text(name, std::string(ftrun::fuzz::input_text(data, size)));
    ftrun::ResolveContext context;
    context.world_size = 4;
    ftrun::resolve(loaded.written, context);
  });
}
