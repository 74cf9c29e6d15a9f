// Ops that pass every call on: the base of those that watch the calls, or change what they are
// given.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace attnbench {

/// `inner` must outlive it. A derived class overrides the calls that it is about; every other one
/// reaches `inner` as it was made.
class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(Ops& inner) : inner_(inner) {}

  std::string device_name() const override { return inner_.device_name(); }
  int num_sms() const override { return inner_.num_sms(); }
  int sm() const override { return inner_.sm(); }
  void force_kernel(std::string_view name) override { inner_.force_kernel(name); }
  TileUse tile_use(const attn::AttendParams& params) const override {
    return inner_.tile_use(params);
  }
  TileUse beside_use(const attn::AttendParams& params) const override {
    return inner_.beside_use(params);
  }
  ApartUse apart_use(const attn::AttendParams& params) const override {
    return inner_.apart_use(params);
  }
  std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) override {
    return inner_.allocate(size_bytes, name);
  }
  bool place_buffers(Placement placement) override { return inner_.place_buffers(placement); }
  std::vector<std::string> edges() const override { return inner_.edges(); }
  void close_edges(const std::string& name) override { inner_.close_edges(name); }
  void upload(Buffer& destination, const void* source, std::size_t size_bytes) override {
    inner_.upload(destination, source, size_bytes);
  }
  void download(void* destination, Buffer& source, std::size_t size_bytes,
                std::size_t offset_bytes) override {
    inner_.download(destination, source, size_bytes, offset_bytes);
  }
  void poison(Buffer& buffer) override { inner_.poison(buffer); }
  void synchronize() override { inner_.synchronize(); }
  void wait() override { inner_.wait(); }
  void settle() override { inner_.settle(); }
  void on_wait(std::function<void(const std::string& kernels)> listener) override {
    inner_.on_wait(std::move(listener));
  }
  void* stream_for(const std::string& name) override { return inner_.stream_for(name); }
  std::vector<KernelInfo> take_kernels() override { return inner_.take_kernels(); }
  void prepare_matmul(const attn::MatmulParams& params) override { inner_.prepare_matmul(params); }
  bool takes_rope_apart(const attn::AttendParams& params) const override {
    return inner_.takes_rope_apart(params);
  }
  WideUse wide_use(const attn::AttendParams& params) const override {
    return inner_.wide_use(params);
  }
  bool fuses(const attn::LatentQueryParams& params) const override { return inner_.fuses(params); }
  bool fuses(const attn::ValueOutputParams& params) const override { return inner_.fuses(params); }

#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void name parameters override { inner_.name arguments; }
#include "ops/operations.def"

 protected:
  Ops& inner() { return inner_; }

 private:
  Ops& inner_;
};

}  // namespace attnbench
