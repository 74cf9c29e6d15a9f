// A library for tests that does on host memory what cuDNN's documentation says of a graph.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "cudnn/library.h"

namespace attnbench {

/// What a test makes the library do wrong, and what was asked of it.
struct FakeCudnnState {
  bool base_two_stats = false;
  bool top_left_only = false;
  std::string refusal;
  std::int64_t workspace_bytes = 64;
  int num_plans = 0;
  CudnnGraph graph;  // of the last plan
};

class FakeCudnnPlan final : public CudnnPlan {
 public:
  FakeCudnnPlan(const CudnnGraph& graph, const FakeCudnnState& state)
      : graph_(graph), state_(state) {}
  std::int64_t workspace_bytes() const override { return state_.workspace_bytes; }
  const std::string& name() const override { return name_; }

  void run(const CudnnMemory& memory, void* workspace) override {
    if ((workspace == nullptr) != (state_.workspace_bytes == 0)) {
      fail(ErrorKind::kInternal, "no workspace");
    }
    memory_ = memory;
    const auto [requests, heads, rows, columns] = graph_.query_shape.extents;
    for (std::int64_t b = 0; b < requests; ++b) {
      const std::int64_t num_rows = graph_.has_lengths ? memory.query_lens[b] : rows;
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < num_rows; ++i) attend(b, h, i, num_rows);
      }
    }
  }

 private:
  std::int64_t offset(const CudnnTensor& shape, const void* offsets, std::int64_t b, std::int64_t h,
                      std::int64_t i) const {
    std::int64_t start = b * shape.strides[0];
    if (shape.is_ragged) {
      start = graph_.wide_offsets ? static_cast<const std::int64_t*>(offsets)[b]
                                  : static_cast<const std::int32_t*>(offsets)[b];
    }
    return start + h * shape.strides[1] + i * shape.strides[2];
  }

  /// Of key or value j of a request.
  std::int64_t key_offset(const CudnnTensor& shape, const void* offsets, std::int64_t b,
                          std::int64_t h, std::int64_t j) const {
    if (!graph_.pages) return offset(shape, offsets, b, h, j);
    const std::int64_t block_size = shape.extents[2];
    const std::int32_t block = memory_.block_table[b * graph_.pages->table_width + j / block_size];
    return offset(shape, nullptr, block, h, j % block_size);
  }

  bool sees(std::int64_t row, std::int64_t num_rows, std::int64_t key,
            std::int64_t num_keys) const {
    const CudnnMask& mask = graph_.mask;
    const bool shifted = mask.is_bottom_right && !state_.top_left_only;
    const std::int64_t position = row + (shifted ? num_keys - num_rows : 0);
    return (!mask.left || key > position - *mask.left) &&
           (!mask.right || key <= position + *mask.right);
  }

  double element(const void* data, std::int64_t index, const float* descale) const {
    const double code = double{load_float(graph_.input, data, index)};
    return descale == nullptr ? code : code * double{*descale};
  }

  void attend(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t num_rows) {
    const CudnnTensor& key_shape = graph_.key_shape;
    const std::int64_t keys = graph_.pages ? graph_.pages->max_seq_len : key_shape.extents[2];
    const std::int64_t num_keys = graph_.has_lengths ? memory_.key_lens[b] : keys;
    const std::int64_t kv_head = h / (graph_.query_shape.extents[1] / key_shape.extents[1]);
    const std::int64_t query = offset(graph_.query_shape, memory_.query_offsets, b, h, i);
    std::vector<double> scores;
    double most =
        graph_.has_sinks ? double{memory_.sinks[h]} : -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j < num_keys; ++j) {
      double score = -std::numeric_limits<double>::infinity();
      if (sees(i, num_rows, j, num_keys)) {
        const std::int64_t key = key_offset(key_shape, memory_.key_offsets, b, kv_head, j);
        score = 0;
        for (std::int64_t d = 0; d < graph_.query_shape.extents[3]; ++d) {
          score += element(memory_.query, query + d, memory_.query_descale) *
                   element(memory_.key, key + d, memory_.key_descale);
        }
        score *= double{graph_.softmax_scale};
      }
      scores.push_back(score);
      most = std::max(most, score);
    }
    double sum = graph_.has_sinks ? std::exp(double{memory_.sinks[h]} - most) : 0.0;
    for (double& score : scores) sum += score = std::exp(score - most);
    write_output(b, h, i, kv_head, scores, sum);
    const double lse = most + std::log(sum);
    memory_.stats[offset(graph_.stats_shape, memory_.stats_offsets, b, h, i)] =
        static_cast<float>(state_.base_two_stats ? lse / std::log(2.0) : lse);
  }

  void write_output(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t kv_head,
                    const std::vector<double>& weights, double sum) {
    const std::int64_t output = offset(graph_.output_shape, memory_.output_offsets, b, h, i);
    const double scale = memory_.output_scale == nullptr ? 1.0 : double{*memory_.output_scale};
    for (std::int64_t d = 0; d < graph_.output_shape.extents[3]; ++d) {
      double total = 0;
      for (std::size_t j = 0; j < weights.size(); ++j) {
        const std::int64_t value = key_offset(graph_.value_shape, memory_.value_offsets, b, kv_head,
                                              static_cast<std::int64_t>(j));
        total += weights[j] * element(memory_.value, value + d, memory_.value_descale);
      }
      total += rest_of_page(b, kv_head, d, static_cast<std::int64_t>(weights.size()));
      store_float(graph_.output, memory_.output, output + d,
                  static_cast<float>(total / sum * scale));
    }
  }

  /// What lies behind the last key in its page, by a weight of 0.
  double rest_of_page(std::int64_t b, std::int64_t kv_head, std::int64_t d, std::int64_t num_keys) {
    double rest = 0;
    if (!graph_.pages) return rest;
    for (std::int64_t j = num_keys; j % graph_.value_shape.extents[2] != 0; ++j) {
      rest += 0.0 * element(memory_.value,
                            key_offset(graph_.value_shape, nullptr, b, kv_head, j) + d, nullptr);
    }
    return rest;
  }

  CudnnGraph graph_;
  const FakeCudnnState& state_;
  CudnnMemory memory_;
  std::string name_ = "eng0_of_tests";
};

class FakeCudnn final : public CudnnLibrary {
 public:
  explicit FakeCudnn(FakeCudnnState& state) : state_(state) {}
  const std::string& path() const override { return path_; }
  const std::string& version() const override { return version_; }
  std::unique_ptr<CudnnPlan> plan(const CudnnGraph& graph, void*) const override {
    ++state_.num_plans;
    state_.graph = graph;
    if (!state_.refusal.empty()) fail(ErrorKind::kUnsupported, "{}", state_.refusal);
    return std::make_unique<FakeCudnnPlan>(graph, state_);
  }

 private:
  FakeCudnnState& state_;
  std::string path_ = "/nowhere/libcudnn.so.9";
  std::string version_ = "9.99.0, frontend 1.99.0";
};

}  // namespace attnbench
