// The operations of operations.def on CPU threads, one function each; make_cpu_ops() of ops/ops.h
// wraps them as Ops. A file of this folder defines the functions of some rows, and what only they
// use.
//
// What holds for each of them:
//   - parameter structs say shapes, strides and rounding; pointers are host memory here;
//   - it computes in float32 whatever the elements, and rounds once when it stores;
//   - work is divided into pieces, tokens or blocks of rows, each done by one thread from beginning
//   to
//     end, and no sum goes across pieces. So results have the same bits with any number of threads;
//   - padding, and rows that the parameters exclude, are neither read nor written;
//   - pipelines have checked the problem. What a function refuses itself, such as other sizes for a
//     format that has one, it refuses before it writes.
#pragma once

#include <vector>

#include "core/system/parallel.h"
#include "ops/cpu/scratch.h"
#include "ops/operation_table.h"

namespace attnbench::cpu {

/// Threads and the working memory of each: a function given to the pool gets the number of its
/// thread and takes scratch[thread], which nobody else uses meanwhile. One Workers belongs to one
/// Ops, whose operations are called one after the other.
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
