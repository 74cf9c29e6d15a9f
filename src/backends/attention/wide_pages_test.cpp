#include "backends/attention/wide_pages.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "backends/attention/pipeline_testing.h"
#include "ops/forwarding_ops.h"

namespace attnbench {
namespace {

/// Says yes, and counts what is converted.
class WantingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  bool wants_wide_pages(const attn::AttendParams& params) const override {
    ++asked;
    wanted = params;
    return true;
  }
  void gather_mla(const attn::MlaGatherParams& params) override {
    gathered.push_back(params);
    inner().gather_mla(params);
  }
  void attend(const attn::AttendParams& params) override {
    attended.push_back(params);
    inner().attend(params);
  }
  mutable int asked = 0;
  mutable attn::AttendParams wanted{};
  std::vector<attn::MlaGatherParams> gathered;
  std::vector<attn::AttendParams> attended;
};

}  // namespace
}  // namespace attnbench
