// The operations of operations.def on CPU threads, one function each; make_cpu_ops wraps them.
#pragma once

#include <vector>

#include "core/system/parallel.h"
#include "ops/cpu/scratch.h"
#include "ops/operation_table.h"

namespace attnbench::cpu {

/// Threads and the working memory of each.
struct Workers {
  explicit Workers(int num_threads)
      : pool(num_threads), scratch(static_cast<std::size_t>(pool.num_threads())) {}
  ThreadPool pool;
  std::vector<Scratch> scratch;
};

/// void attend(const attn::AttendParams& params, Workers& workers), and so on. Each is done when it
/// returns.
#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void name(ATTNBENCH_LIST parameters, Workers& workers);
#include "ops/operations.def"

}  // namespace attnbench::cpu
