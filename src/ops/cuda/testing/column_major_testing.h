// What cuBLASLt is documented to do, as three loops over host memory, for tests without a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/numbers/dtype.h"
#include "gpu/cublas_lt.h"

namespace attnbench::cuda {

inline Dtype dtype_of(MatrixType type) {
  switch (type) {
    case MatrixType::kBF16:
      return Dtype::kBF16;
    case MatrixType::kF16:
      return Dtype::kF16;
    case MatrixType::kF32:
      return Dtype::kF32;
    default:
      fail(ErrorKind::kInternal, "no product of MLA has this type");
  }
}

/// Address of an element, by the documented meaning of leading dimension and strided batch offset.
inline char* place(const LtMatrix& m, const void* first, int batch, std::int64_t row,
                   std::int64_t column) {
  const std::int64_t at = batch * m.batch_stride + column * m.leading + row;
  return static_cast<char*>(const_cast<void*>(first)) +
         at * static_cast<std::int64_t>(dtype_size(dtype_of(m.type)));
}

/// E-CUDA for what the library would refuse: a leading dimension below the rows, an address that is
/// less aligned than was promised, extents that do not fit together.
inline void check_matrix(const LtMatrix& m, const void* first, int batches, std::int64_t rows,
                         std::int64_t columns) {
  if (m.leading < m.rows || m.rows != rows || m.columns != columns) {
    throw DeviceError("invalid matrix layout", false);
  }
  for (int i = 0; i < batches; ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(place(m, first, i, 0, 0));
    if (address % static_cast<std::uintptr_t>(m.alignment) != 0) {
      throw DeviceError("misaligned matrix", false);
    }
  }
}

inline void multiply_by_columns(const LtProduct& p, const void* a, const void* b, void* d) {
  const std::int64_t depth = p.transpose_a ? p.a.rows : p.a.columns;
  const std::int64_t rows = p.d.rows;
  const std::int64_t columns = p.d.columns;
  check_matrix(p.a, a, p.batches, p.transpose_a ? depth : rows, p.transpose_a ? rows : depth);
  check_matrix(p.b, b, p.batches, p.transpose_b ? columns : depth, p.transpose_b ? depth : columns);
  check_matrix(p.d, d, p.batches, rows, columns);
  const auto value = [](const LtMatrix& m, const void* first, int batch, std::int64_t row,
                        std::int64_t column) {
    float loaded = 0;
    load_floats(dtype_of(m.type), place(m, first, batch, row, column), 1, &loaded);
    return loaded;
  };
  for (int i = 0; i < p.batches; ++i) {
    for (std::int64_t column = 0; column < columns; ++column) {
      for (std::int64_t row = 0; row < rows; ++row) {
        float sum = 0;
        for (std::int64_t k = 0; k < depth; ++k) {
          sum += (p.transpose_a ? value(p.a, a, i, k, row) : value(p.a, a, i, row, k)) *
                 (p.transpose_b ? value(p.b, b, i, column, k) : value(p.b, b, i, k, column));
        }
        store_floats(dtype_of(p.d.type), &sum, 1, place(p.d, d, i, row, column));
      }
    }
  }
}

/// What a test tells the library and reads from it.
struct FakeLibrary {
  int opened = 0;
  std::vector<LtProduct> planned;
  int runs = 0;
  std::size_t workspace_bytes = 0;
  bool is_missing = false;
  bool has_algorithms = true;
  std::string plan_error;
  std::string run_error;
  std::function<void(void* d, void* workspace)> on_run;  // after the product

  CublasLtOpener opener();
};

class FakePlan final : public LtPlan {
 public:
  FakePlan(FakeLibrary& library, const LtProduct& product) : library_(library), product_(product) {}
  const std::string& algorithm() const override { return algorithm_; }
  std::size_t workspace_bytes() const override { return library_.workspace_bytes; }
  void run(const void* a, const void* b, void* d, void* workspace) const override {
    if (!library_.run_error.empty()) throw DeviceError(library_.run_error, false);
    multiply_by_columns(product_, a, b, d);
    ++library_.runs;
    if (library_.on_run) library_.on_run(d, workspace);
  }

 private:
  FakeLibrary& library_;
  LtProduct product_;
  std::string algorithm_ = "algorithm 7";
};

class FakeCublasLt final : public CublasLt {
 public:
  explicit FakeCublasLt(FakeLibrary& library) : library_(library) {}
  const std::string& version() const override { return version_; }
  std::unique_ptr<LtPlan> plan(const LtProduct& product) override {
    if (!library_.plan_error.empty()) throw DeviceError(library_.plan_error, false);
    library_.planned.push_back(product);
    if (!library_.has_algorithms) return nullptr;
    return std::make_unique<FakePlan>(library_, product);
  }

 private:
  FakeLibrary& library_;
  std::string version_ = "1.2.3";
};

inline CublasLtOpener FakeLibrary::opener() {
  return [this](Runtime&, const Stream&) -> CublasLtChoice {
    ++opened;
    if (is_missing) return {nullptr, "cuBLASLt not found: it is a test"};
    return {std::make_unique<FakeCublasLt>(*this), ""};
  };
}

}  // namespace attnbench::cuda
