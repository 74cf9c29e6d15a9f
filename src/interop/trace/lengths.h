// The lengths of a workload's requests, and which rows of its cache hold their keys.
//
// - Lengths are indptrs over pages, or tables of pages with lengths beside them. A request's keys
//   fill its pages unless a length says otherwise. Which pages are its own does not matter for a
//   scenario; where values are given, they are gathered in the order of positions.
// - The rows of sparse attention belong to no request. Each becomes a request of its own, whose
//   keys are those that its list names, in that order.
// - Lists of blocks by KV head become requests, too (head_lists.h).
// - What no file gives ("random", or inputs of plan()) is as equal as it can be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "interop/trace/form.h"
#include "interop/trace/head_lists.h"
#include "interop/trace/tensors.h"

namespace attnbench {

class TraceLengths {
 public:
  /// All are borrowed. Errors: E-VALUE for lengths that are no batch of a scenario, with the
  /// workload's uuid; E-IO, E-FORMAT and E-DTYPE for tensors.
  TraceLengths(const TraceForm& form, const TraceTensors& tensors);

  const std::vector<std::int64_t>& queries() const { return queries_; }  // new tokens by request
  const std::vector<std::int64_t>& keys() const { return keys_; }        // new ones included
  std::int64_t page_size() const;
  const std::vector<TraceHeadList>& head_lists() const { return head_lists_; }
  std::int64_t topk() const { return topk_; }  // of lists, 0 without
  /// Inputs whose values nobody gave.
  const std::vector<std::string>& drawn() const { return drawn_; }

  /// Whether files say which rows are whose.
  bool are_placed() const;
  /// Rows of the cache that hold the keys of all requests, in the order of positions. Errors:
  /// E-VALUE for a page or a row that is not there.
  std::vector<std::int64_t> key_rows() const;

 private:
  void read_queries();
  void read_keys();
  void read_offset_keys(std::int64_t page);
  void read_table_keys(std::int64_t page);
  void read_lists();
  void shorten_last_pages(std::int64_t page);
  void check() const;
  void check_range(const std::string& name, const char* what, std::int64_t found,
                   std::int64_t most) const;
  std::optional<std::vector<std::int64_t>> counts(const std::string& name) const;
  std::int64_t num_rows(const std::string& name, std::int64_t most) const;
  std::int64_t num_pages() const;

  const TraceForm& form_;
  const TraceTensors& tensors_;
  std::vector<std::int64_t> queries_, keys_;
  std::vector<std::int64_t> firsts_;  // first entry of the pages, or first key, by request
  std::int64_t topk_ = 0;
  std::optional<std::vector<std::int64_t>> lists_;  // [T, topk]
  std::optional<std::vector<std::int64_t>> table_;  // [B, M]
  std::vector<TraceHeadList> head_lists_;
  std::vector<std::string> drawn_;
};

}  // namespace attnbench
