// Ops that note calls that are not allowed while a pipeline queues its work: what makes the host
// wait for the device, which a stream that is held or captured never lets go on.
#pragma once

#include <string>
#include <utility>

#include "backends/backend.h"
#include "ops/forwarding_ops.h"

namespace attnbench::matrix {

class WaitingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) override {
    note("allocate " + name);
    return inner().allocate(size_bytes, name);
  }
  void upload(Buffer& destination, const void* source, std::size_t size_bytes) override {
    note("upload");
    inner().upload(destination, source, size_bytes);
  }
  void download(void* destination, Buffer& source, std::size_t size_bytes,
                std::size_t offset_bytes = 0) override {
    note("download");
    inner().download(destination, source, size_bytes, offset_bytes);
  }
  void synchronize() override {
    note("synchronize");
    inner().synchronize();
  }
  void wait() override {
    note("wait");
    inner().wait();
  }

  /// Queues the steps as a measurement does.
  void queue(const Pipeline& pipeline) {
    for (const Step& step : pipeline.steps()) {
      doing_ = step.name;
      step.run();
    }
    doing_.clear();
  }
  /// "quantise: download", of the first call that queue() met and should not have; or empty.
  const std::string& first_wait() const { return first_wait_; }

 private:
  void note(const std::string& call) {
    if (!doing_.empty() && first_wait_.empty()) first_wait_ = doing_ + ": " + call;
  }

  std::string doing_;  // empty outside queue()
  std::string first_wait_;
};

}  // namespace attnbench::matrix
