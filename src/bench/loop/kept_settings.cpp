// Compares by name, since a device may know fewer settings than others.
#include "bench/loop/kept_settings.h"

#include <fmt/format.h>

#include "ops/cuda/cuda_ops.h"

namespace attnbench {
namespace {

/// Whether the kernels of a pipeline may need it as they set it.
bool is_of_kernels(const std::string& name) {
  return name.starts_with("stack") || name.starts_with("printf") || name.starts_with("malloc");
}

}  // namespace

KeptSettings::KeptSettings(Ops& ops) {
  auto* device = dynamic_cast<CudaOps*>(&ops);
  if (device == nullptr) return;
  runtime_ = &device->runtime();
  before_ = runtime_->settings();
}

KeptSettings::~KeptSettings() {
  if (runtime_ != nullptr) runtime_->restore(before_);
}

std::string KeptSettings::changes() {
  if (runtime_ == nullptr) return "";
  std::string text;
  std::vector<DeviceSetting> back;
  for (const DeviceSetting& now : runtime_->settings()) {
    for (const DeviceSetting& old : before_) {
      if (old.name != now.name || old.value == now.value) continue;
      text += fmt::format("{}{} from {} to {}", text.empty() ? "" : ", ", now.name, old.value,
                          now.value);
    }
    back.push_back(now);
    for (const DeviceSetting& old : before_) {
      if (old.name == now.name && !is_of_kernels(now.name)) back.back() = old;
    }
  }
  if (!text.empty()) runtime_->restore(back);
  return text;
}

}  // namespace attnbench
