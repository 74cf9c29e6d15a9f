#include "interop/trace/lengths.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace attnbench {
namespace {

// Of a batch of a scenario (contract section 1.1). What is beyond is refused before anything of
// that size is made, since one damaged line must not end an import.
constexpr std::int64_t kMostRequests = 1000000;
constexpr std::int64_t kMostTokens = 2147483647;

/// `count` whole numbers that are as equal as they can be, of the given sum.
std::vector<std::int64_t> even_parts(std::int64_t sum, std::int64_t count) {
  std::vector<std::int64_t> parts;
  for (std::int64_t i = 0; i < count; ++i) parts.push_back(sum / count + (i < sum % count ? 1 : 0));
  return parts;
}

std::vector<std::int64_t> differences(const std::vector<std::int64_t>& offsets) {
  std::vector<std::int64_t> parts;
  for (std::size_t i = 1; i < offsets.size(); ++i) parts.push_back(offsets[i] - offsets[i - 1]);
  return parts;
}

}  // namespace

TraceLengths::TraceLengths(const TraceForm& form, const TraceTensors& tensors)
    : form_(form), tensors_(tensors) {
  if (form.kind == TraceKind::kSparseMla) {
    read_lists();
  } else if (form.kind == TraceKind::kHeadLists) {
    head_lists_ = trace_head_lists(form, tensors, drawn_);
    for (const TraceHeadList& list : head_lists_) {
      queries_.push_back(list.num_queries);
      keys_.push_back(list.num_keys);
    }
  } else {
    read_queries();
    read_keys();
  }
  check();
}

std::int64_t TraceLengths::page_size() const {
  return form_.has_pages() ? tensors_.dim(form_.key, form_.page_axis) : 1;
}

void TraceLengths::check_range(const std::string& name, const char* what, std::int64_t found,
                               std::int64_t most) const {
  if (found >= 0 && found <= most) return;
  tensors_.refuse("{}: expected 0 to {} {}, found {}", name, most, what, found);
}

/// Values of an input that counts or numbers something.
std::optional<std::vector<std::int64_t>> TraceLengths::counts(const std::string& name) const {
  if (name.empty()) return std::nullopt;
  auto values = tensors_.integers(name);
  if (!values) return values;
  check_range(name, "values", static_cast<std::int64_t>(values->size()), kMostTokens);
  for (const std::int64_t value : *values) check_range(name, "as a value", value, kMostTokens);
  return values;
}

/// Tokens of a query: all axes but the last two, one without any.
std::int64_t TraceLengths::num_rows(const std::string& name, std::int64_t most) const {
  std::int64_t rows = 1;
  for (int axis = 0; axis < tensors_.num_axes(name) - 2; ++axis) {
    const std::int64_t size = tensors_.dim(name, axis);
    check_range(name, "rows", size, most);
    rows *= size;  // of at most 31 bits each
    check_range(name, "rows", rows, most);
  }
  return rows;
}

void TraceLengths::read_queries() {
  if (const auto offsets = counts(form_.query_offsets)) {
    queries_ = differences(*offsets);
    return;
  }
  if (auto lengths = counts(form_.query_lengths)) {
    queries_ = std::move(*lengths);
    return;
  }
  const bool has_offsets = !form_.query_offsets.empty(), has_lengths = !form_.query_lengths.empty();
  const bool is_counted = has_offsets || has_lengths || form_.is_single || !form_.table.empty();
  const bool by_request = tensors_.num_axes(form_.query) == 4;
  const bool is_row_a_request = form_.kind == TraceKind::kIndexer || (!by_request && !is_counted);
  std::int64_t rows = 0;
  if (form_.kind == TraceKind::kIndexer) {
    rows = tensors_.dim(form_.query, 0);
    check_range(form_.query, "rows", rows, kMostRequests);
  } else {
    rows = num_rows(form_.query, is_row_a_request ? kMostRequests : kMostTokens);
  }
  std::int64_t requests = rows;
  if (by_request) {
    requests = tensors_.dim(form_.query, 0);
    check_range(form_.query, "requests", requests, kMostRequests);
  } else if (form_.is_single) {
    requests = 1;
  } else if (has_offsets) {
    requests = std::max<std::int64_t>(tensors_.dim(form_.query_offsets, 0) - 1, 1);
    check_range(form_.query_offsets, "requests", requests, kMostRequests);
    drawn_.push_back(form_.query_offsets);
  } else if (has_lengths) {
    requests = tensors_.dim(form_.query_lengths, 0);
    check_range(form_.query_lengths, "requests", requests, kMostRequests);
    drawn_.push_back(form_.query_lengths);
  } else if (!form_.table.empty()) {
    requests = tensors_.dim(form_.table, 0);
    check_range(form_.table, "requests", requests, kMostRequests);
  }
  if (!has_offsets && !has_lengths && (requests == 0 ? rows > 0 : rows % requests != 0)) {
    tensors_.refuse("{}: expected equally many tokens of each of the {} requests, found {} tokens",
                    form_.query, requests, rows);
  }
  queries_ = even_parts(rows, requests);
}

void TraceLengths::read_keys() {
  const std::int64_t page = page_size();
  check_range("page_size", "keys", page, kMostTokens);
  if (form_.table.empty()) {
    read_offset_keys(page);
  } else {
    read_table_keys(page);
  }
}

void TraceLengths::read_offset_keys(std::int64_t page) {
  const auto offsets = counts(form_.key_offsets);
  if (offsets) {
    firsts_.assign(offsets->begin(), offsets->end() - (offsets->empty() ? 0 : 1));
    keys_ = differences(*offsets);
  } else if (form_.key_offsets.empty() && form_.kind == TraceKind::kRagged) {
    const std::int64_t keys = tensors_.dim(form_.key, form_.page_axis);
    check_range(form_.key, "keys", keys, kMostTokens);
    keys_.assign(queries_.size(), keys);
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      firsts_.push_back(static_cast<std::int64_t>(i) * keys);
    }
    return;
  } else {
    const auto count = static_cast<std::int64_t>(queries_.size());
    check_range("kv_indptr", "pages", num_pages(), kMostTokens);
    keys_ = even_parts(num_pages(), std::max<std::int64_t>(count, 1));
    drawn_.push_back(form_.key_offsets.empty() ? "kv_indptr" : form_.key_offsets);
  }
  for (std::int64_t& keys : keys_) {
    keys *= page;  // of at most 31 bits each
    if (keys > kMostTokens) check_range("kv_indptr", "keys of a request", keys, kMostTokens);
  }
  if (keys_.size() != queries_.size()) {
    tensors_.refuse("kv_indptr has {} requests, the queries have {}", keys_.size(),
                    queries_.size());
  }
  shorten_last_pages(page);
  if (offsets) return;
  for (std::size_t i = 0; i < keys_.size(); ++i) keys_[i] = std::max(keys_[i], queries_[i]);
}

void TraceLengths::read_table_keys(std::int64_t page) {
  const std::int64_t requests = tensors_.dim(form_.table, 0), width = tensors_.dim(form_.table, 1);
  check_range(form_.table, "requests", requests, kMostRequests);
  check_range(form_.table, "pages of a request", width, kMostTokens);
  if (requests != static_cast<std::int64_t>(queries_.size())) {
    tensors_.refuse("{} has {} requests, the queries have {}", form_.table, requests,
                    queries_.size());
  }
  table_ = tensors_.integers(form_.table);
  if (table_ && static_cast<std::int64_t>(table_->size()) != requests * width) {
    tensors_.refuse("{}: expected [{}, {}] values, found {}", form_.table, requests, width,
                    table_->size());
  }
  for (std::int64_t i = 0; i < requests; ++i) firsts_.push_back(i * width);
  if (const auto lengths = counts(form_.key_lengths)) {
    if (lengths->size() != queries_.size()) {
      tensors_.refuse("{}: expected {} requests, found {}", form_.key_lengths, queries_.size(),
                      lengths->size());
    }
    keys_ = *lengths;
    return;
  }
  // Every request fills the pages of its row; -1 is no page.
  for (std::int64_t i = 0; i < requests; ++i) {
    std::int64_t pages = width;
    if (table_) {
      const auto row = table_->begin() + i * width;
      pages = std::count_if(row, row + width, [](std::int64_t entry) { return entry >= 0; });
    }
    check_range(form_.table, "keys of a request", pages * page, kMostTokens);
    keys_.push_back(pages * page);
  }
  drawn_.push_back(form_.key_lengths.empty() ? form_.table : form_.key_lengths);
}

/// Keys do not fill the last page where the workload says how many are in it.
void TraceLengths::shorten_last_pages(std::int64_t page) {
  for (const char* name : {"kv_last_page_len", "paged_kv_last_page_len"}) {
    const auto lengths = counts(name);
    if (!lengths) continue;
    for (std::size_t i = 0; i < std::min(lengths->size(), keys_.size()); ++i) {
      if (keys_[i] > 0) keys_[i] += (*lengths)[i] - page;
    }
  }
  const auto lengths = counts("kv_len_arr");
  if (lengths && lengths->size() == keys_.size()) keys_ = *lengths;
}

void TraceLengths::read_lists() {
  const std::int64_t rows = tensors_.dim(form_.lists, 0);
  topk_ = tensors_.dim(form_.lists, 1);
  check_range(form_.lists, "rows", rows, kMostRequests);
  check_range(form_.lists, "keys of a row", topk_, kMostTokens);
  queries_.assign(static_cast<std::size_t>(rows), 1);
  lists_ = tensors_.integers(form_.lists);
  if (!lists_) {
    const std::int64_t pages = tensors_.dim(form_.key, 0);
    check_range(form_.key, "pages", pages, kMostTokens);
    check_range("page_size", "keys", page_size(), kMostTokens);
    const std::int64_t entries = pages * page_size();
    keys_.assign(static_cast<std::size_t>(rows), std::min(topk_, entries));
    drawn_.push_back(form_.lists);
    return;
  }
  if (topk_ < 1 || static_cast<std::int64_t>(lists_->size()) != rows * topk_) {
    tensors_.refuse("{}: expected [{}, {}] values, found {}", form_.lists, rows, topk_,
                    lists_->size());
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto first = lists_->begin() + row * topk_;
    keys_.push_back(topk_ - std::count(first, first + topk_, -1));
  }
}

void TraceLengths::check() const {
  if (queries_.empty()) tensors_.refuse("no requests");
  for (std::size_t i = 0; i < queries_.size(); ++i) {
    if (queries_[i] < 0 || keys_[i] < 0) tensors_.refuse("request {}: offsets that fall", i);
    if (keys_[i] >= queries_[i]) continue;
    tensors_.refuse(
        "request {} has {} new tokens and {} keys; attnbench counts new tokens among the keys", i,
        queries_[i], keys_[i]);
  }
}

std::int64_t TraceLengths::num_pages() const {
  if (form_.kind == TraceKind::kRagged) return tensors_.dim(form_.key, 0);
  const std::optional<std::int64_t> listed = tensors_.dim_if_known(form_.key_pages, 0);
  return listed ? *listed : tensors_.dim(form_.key, 0);
}

bool TraceLengths::are_placed() const {
  if (form_.kind == TraceKind::kSparseMla) return lists_.has_value();
  if (form_.kind == TraceKind::kHeadLists) {
    return std::none_of(head_lists_.begin(), head_lists_.end(),
                        [](const TraceHeadList& list) { return list.keys.empty(); });
  }
  if (!form_.table.empty()) {
    return table_ && (form_.key_lengths.empty() || tensors_.is_given(form_.key_lengths));
  }
  if (form_.key_offsets.empty()) return form_.kind == TraceKind::kRagged;
  return tensors_.is_given(form_.key_offsets) &&
         (form_.kind == TraceKind::kRagged || tensors_.is_given(form_.key_pages));
}

std::vector<std::int64_t> TraceLengths::key_rows() const {
  std::vector<std::int64_t> rows;
  if (form_.kind == TraceKind::kSparseMla) {
    std::copy_if(lists_->begin(), lists_->end(), std::back_inserter(rows),
                 [](std::int64_t row) { return row != -1; });
    return rows;
  }
  const bool ragged = form_.kind == TraceKind::kRagged;
  const std::string& pages_name = form_.table.empty() ? form_.key_pages : form_.table;
  const auto pages = ragged ? std::nullopt : table_ ? table_ : tensors_.integers(pages_name);
  const std::int64_t page = page_size();
  const std::int64_t width = form_.table.empty() ? 0 : tensors_.dim(form_.table, 1);
  const std::int64_t num_keys = ragged ? num_rows(form_.key, kMostTokens) : 0;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (ragged && firsts_[i] + keys_[i] > num_keys) {
      tensors_.refuse("kv_indptr: request {} has keys {} to {}, and there are {}", i, firsts_[i],
                      firsts_[i] + keys_[i], num_keys);
    }
    if (width > 0 && keys_[i] > width * page) {
      tensors_.refuse("{}: request {} has {} keys and pages for {}", pages_name, i, keys_[i],
                      width * page);
    }
    for (std::int64_t key = 0; key < keys_[i]; ++key) {
      if (ragged) {
        rows.push_back(firsts_[i] + key);
        continue;
      }
      const auto entry = static_cast<std::size_t>(firsts_[i] + key / page);
      if (!pages || entry >= pages->size()) tensors_.refuse("{}: no entry {}", pages_name, entry);
      check_range(pages_name, "as a page", (*pages)[entry], kMostTokens);
      rows.push_back((*pages)[entry] * page + key % page);
    }
  }
  return rows;
}

}  // namespace attnbench
