// Any text is a batch or is refused with an Error; the canonical text of a batch gives it again.
#include <cstdlib>

#include "core/error.h"
#include "scenario/batch/batch_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string spec(reinterpret_cast<const char*>(data), size);
  for (const bool cross : {false, true}) {
    std::vector<attnbench::Request> batch;
    try {
      batch = attnbench::parse_batch_spec(spec, cross);
    } catch (const attnbench::Error&) {
      continue;
    }
    const std::string canonical = attnbench::canonical_batch_spec(batch);
    if (attnbench::parse_batch_spec(canonical, cross) != batch) std::abort();
  }
  return 0;
}
