#include "interop/trace/head_lists.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

namespace attnbench {
namespace {

using Integers = std::vector<std::int64_t>;

constexpr std::int64_t kListBlock = 128;  // keys of a block of q2k_indices
constexpr std::int64_t kMostLists = 1000000;
constexpr std::int64_t kMostKeys = std::int64_t{1} << 31;

class Reader {
 public:
  Reader(const TraceForm& form, const TraceTensors& tensors, std::vector<std::string>& drawn)
      : form_(form),
        tensors_(tensors),
        drawn_(drawn),
        heads_(bounded("KV heads", tensors.dim(form.key, form.head_axis), kMostLists)),
        page_(form.has_pages()
                  ? bounded("tokens of a page", tensors.dim(form.key, form.page_axis), kMostKeys)
                  : 1),
        has_values_(tensors.is_given(form.query) && tensors.is_given(form.key) &&
                    tensors.is_given(form.value)) {
    if (heads_ < 1 || page_ < 1) tensors.refuse("{}: no heads or no tokens", form.key);
  }

  std::vector<TraceHeadList> read() {
    if (!form_.lists.empty()) {
      read_token_lists();
    } else if (!form_.block_offsets.empty()) {
      read_block_rows();
    } else {
      read_tables();
    }
    return std::move(lists_);
  }

 private:
  std::int64_t bounded(const char* what, std::int64_t found, std::int64_t most) const {
    if (found < 0 || found > most) {
      tensors_.refuse("expected 0 to {} {}, found {}", most, what, found);
    }
    return found;
  }

  /// Values of an input of that many; nothing, and noted as drawn, where no file has them.
  std::optional<Integers> values(const std::string& name, std::int64_t count) {
    auto found = name.empty() ? std::nullopt : tensors_.integers(name);
    if (!found) {
      if (!name.empty()) drawn_.push_back(name);
      return found;
    }
    if (static_cast<std::int64_t>(found->size()) != count) {
      tensors_.refuse("{}: expected {} values, found {}", name, count, found->size());
    }
    return found;
  }

  /// Offsets of `count` requests, by a file or as equal as they can be.
  Integers offsets(const std::string& name, std::int64_t count, std::int64_t total) {
    if (const auto found = values(name, count + 1)) {
      for (std::size_t i = 0; i < found->size(); ++i) {
        const std::int64_t last = i == 0 ? 0 : (*found)[i - 1];
        if ((*found)[i] < last || (*found)[i] > total) {
          tensors_.refuse("{}: expected offsets that rise to at most {}, found {} at {}", name,
                          total, (*found)[i], i);
        }
      }
      return *found;
    }
    Integers even;
    for (std::int64_t i = 0; i <= count; ++i)
      even.push_back(total * i / std::max<std::int64_t>(count, 1));
    return even;
  }

  void add(TraceHeadList list) {
    if (list.num_keys == 0) return;
    num_keys_ += list.num_keys;
    bounded("keys of all lists", num_keys_, kMostKeys);
    // Rows of long prompts are gigabytes, and only given values are gathered by them.
    if (!has_values_) list.keys = Integers();
    lists_.push_back(std::move(list));
  }

  /// q2k_indices [heads, T, topk]: blocks of the request that a token belongs to, -1 for none.
  void read_token_lists() {
    const std::int64_t tokens = tensors_.dim(form_.query, 0), topk = tensors_.dim(form_.lists, 2);
    bounded("lists", heads_ * bounded("tokens", tokens, kMostLists), kMostLists);
    bounded("blocks of a list", topk, kMostLists);
    const std::int64_t requests = bounded(
        "requests",
        std::max<std::int64_t>(tensors_.dim_if_known(form_.key_offsets, 0).value_or(2) - 1, 1),
        kMostLists);
    const auto lists = values(form_.lists, heads_ * tokens * topk);
    const Integers keys = offsets(form_.key_offsets, requests,
                                  bounded("keys", tensors_.dim(form_.key, 0), kMostKeys));
    const bool is_decode = form_.query_offsets.empty();
    const Integers queries =
        is_decode ? even_queries(tokens, requests) : offsets(form_.query_offsets, requests, tokens);
    const bool causal = tensors_.number("causal").value_or(is_decode ? 1 : 0) != 0;
    for (std::int64_t head = 0; head < heads_; ++head) {
      for (std::size_t b = 0; b + 1 < queries.size(); ++b) {
        const std::int64_t length = keys[b + 1] - keys[b], first = queries[b];
        for (std::int64_t token = first; token < queries[b + 1]; ++token) {
          const std::int64_t seen =
              causal ? std::clamp<std::int64_t>(token - queries[b + 1] + length + 1, 0, length)
                     : length;
          TraceHeadList list{head, token, 1, std::min(topk * kListBlock, seen), {}};
          if (lists) {
            const auto row = lists->begin() + (head * tokens + token) * topk;
            list.keys = tokens_of_blocks({row, row + topk}, kListBlock, seen);
            for (std::int64_t& key : list.keys) key += keys[b];
            list.num_keys = static_cast<std::int64_t>(list.keys.size());
          }
          add(std::move(list));
        }
      }
    }
  }

  Integers even_queries(std::int64_t tokens, std::int64_t requests) const {
    const auto each = tensors_.number("seqlen_q");
    if (tokens % requests != 0 || (each && std::llround(*each) * requests != tokens)) {
      tensors_.refuse(
          "{}: expected equally many tokens of each of the {} requests, found {} tokens",
          form_.query, requests, tokens);
    }
    Integers offsets;
    for (std::int64_t i = 0; i <= requests; ++i) offsets.push_back(tokens / requests * i);
    return offsets;
  }

  /// Tokens below `end` of the blocks, ascending and each once.
  static Integers tokens_of_blocks(const Integers& blocks, std::int64_t size, std::int64_t end) {
    const std::set<std::int64_t> once(blocks.begin(), blocks.end());
    Integers tokens;
    for (const std::int64_t block : once) {
      if (block < 0 || block > end / size) continue;
      const std::int64_t last = std::min((block + 1) * size, end);
      for (std::int64_t token = block * size; token < last; ++token) tokens.push_back(token);
    }
    return tokens;
  }

  /// block_tables [heads, B, M] with seq_lens [heads, B].
  void read_tables() {
    const std::int64_t requests = tensors_.dim(form_.table, 1),
                       width = tensors_.dim(form_.table, 2);
    const std::int64_t rows = num_query_rows();
    bounded("lists", heads_ * bounded("requests", requests, kMostLists), kMostLists);
    bounded("pages of a list", width, kMostKeys / page_);
    if (requests < 1 || rows % requests != 0) {
      tensors_.refuse(
          "{}: expected equally many tokens of each of the {} requests, found {} tokens",
          form_.query, requests, rows);
    }
    const auto table = values(form_.table, heads_ * requests * width);
    const auto lengths = values(form_.key_lengths, heads_ * requests);
    for (std::int64_t i = 0; i < heads_ * requests; ++i) {
      const std::int64_t keys = lengths ? (*lengths)[static_cast<std::size_t>(i)] : width * page_;
      if (keys < 0 || keys > width * page_) {
        tensors_.refuse("{}: expected 0 to {} keys, found {}", form_.key_lengths, width * page_,
                        keys);
      }
      TraceHeadList list{i / requests, i % requests * (rows / requests), rows / requests, keys, {}};
      if (table && lengths && has_values_) {
        for (std::int64_t key = 0; key < keys; ++key) {
          list.keys.push_back((*table)[static_cast<std::size_t>(i * width + key / page_)] * page_ +
                              key % page_);
        }
      }
      add(std::move(list));
    }
  }

  std::int64_t num_query_rows() const {
    std::int64_t rows = 1;
    for (int axis = 0; axis < tensors_.num_axes(form_.query) - 2; ++axis) {
      rows *= bounded("rows of the query", tensors_.dim(form_.query, axis), kMostLists);
      bounded("rows of the query", rows, kMostLists);
    }
    return rows;
  }

  /// A block size, by the workload or as an axis that the definition fixes.
  std::int64_t size_of(const char* name) const {
    const auto given = tensors_.number(name);
    const std::int64_t size = given ? std::llround(*given) : tensors_.axis(name).value_or(0);
    if (size < 1) tensors_.refuse("{}: expected a number of tokens, found {}", name, size);
    return size;
  }

  /// block_indptr [B, heads, rows + 1] into block_indices, with bits of the tokens that count.
  void read_block_rows() {
    const std::int64_t requests = tensors_.dim(form_.query, 0),
                       length = tensors_.dim(form_.query, 1);
    const std::int64_t query_block = size_of("q_block_size"), block = size_of("kv_block_size");
    const std::int64_t rows =
        (bounded("tokens", length, kMostLists) + query_block - 1) / query_block;
    bounded("lists", bounded("requests", requests, kMostLists) * heads_, kMostLists);
    bounded("lists", requests * heads_ * rows, kMostLists);
    const auto starts = values(form_.block_offsets, requests * heads_ * (rows + 1));
    const auto blocks = tensors_.integers("block_indices");
    if (starts && !blocks) drawn_.push_back("block_indices");
    const auto valid = tensors_.integers("kv_valid_bits");
    const std::optional<Integers> pages = request_pages(requests);
    for (std::int64_t i = 0; i < heads_ * requests * rows; ++i) {
      const std::int64_t row = i % rows, b = i / rows % requests, head = i / rows / requests;
      const std::int64_t keys = request_keys_[static_cast<std::size_t>(b)];
      TraceHeadList list{head,
                         b * length + row * query_block,
                         std::min(query_block, length - row * query_block),
                         keys,
                         {}};
      if (starts && blocks) {
        const auto at = starts->begin() + (b * heads_ + head) * (rows + 1) + row;
        if (at[0] < 0 || at[0] > at[1] || at[1] > static_cast<std::int64_t>(blocks->size())) {
          tensors_.refuse("{}: expected offsets that rise to at most {}, found {} and {}",
                          form_.block_offsets, blocks->size(), at[0], at[1]);
        }
        list.keys =
            tokens_of_blocks({blocks->begin() + at[0], blocks->begin() + at[1]}, block, keys);
        if (valid) drop_invalid(*valid, b, requests, list.keys);
        list.num_keys = static_cast<std::int64_t>(list.keys.size());
        place(b, keys, pages, list.keys);
      }
      add(std::move(list));
    }
  }

  void drop_invalid(const Integers& valid, std::int64_t request, std::int64_t requests,
                    Integers& keys) const {
    const std::int64_t words = static_cast<std::int64_t>(valid.size()) / requests;
    const auto is_invalid = [&](std::int64_t key) {
      if (key / 32 >= words) tensors_.refuse("kv_valid_bits: no bit of token {}", key);
      const std::int64_t word = valid[static_cast<std::size_t>(request * words + key / 32)];
      return (word >> (key % 32) & 1) == 0;
    };
    keys.erase(std::remove_if(keys.begin(), keys.end(), is_invalid), keys.end());
  }

  /// Sets the keys and the first page of each request; the pages where a file has them.
  std::optional<Integers> request_pages(std::int64_t requests) {
    if (!form_.has_pages()) {
      request_keys_.assign(static_cast<std::size_t>(requests),
                           bounded("keys", tensors_.dim(form_.key, form_.page_axis), kMostKeys));
      return std::nullopt;
    }
    const auto listed = tensors_.dim_if_known(form_.key_pages, 0);
    const std::int64_t total =
        bounded("pages", listed ? *listed : tensors_.dim(form_.key, 0), kMostKeys / page_);
    const Integers starts = offsets(form_.key_offsets, requests, total);
    for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
      first_pages_.push_back(starts[b]);
      request_keys_.push_back((starts[b + 1] - starts[b]) * page_);
    }
    const auto lengths = tensors_.integers(form_.key_lengths);
    if (lengths && static_cast<std::int64_t>(lengths->size()) == requests) {
      for (std::size_t b = 0; b < lengths->size(); ++b) {
        request_keys_[b] = std::clamp<std::int64_t>((*lengths)[b], 0, request_keys_[b]);
      }
    }
    return tensors_.integers(form_.key_pages);
  }

  /// Makes numbers within a request rows of the cache; none where its pages are not known.
  void place(std::int64_t request, std::int64_t num_keys, const std::optional<Integers>& pages,
             Integers& keys) const {
    if (!form_.has_pages()) {
      for (std::int64_t& key : keys) key += request * num_keys;
      return;
    }
    if (!pages) {
      keys.clear();
      return;
    }
    for (std::int64_t& key : keys) {
      const auto at =
          static_cast<std::size_t>(first_pages_[static_cast<std::size_t>(request)] + key / page_);
      if (at >= pages->size()) tensors_.refuse("{}: no entry {}", form_.key_pages, at);
      key = (*pages)[at] * page_ + key % page_;
    }
  }

  const TraceForm& form_;
  const TraceTensors& tensors_;
  std::vector<std::string>& drawn_;
  const std::int64_t heads_, page_;
  const bool has_values_;
  Integers request_keys_, first_pages_;
  std::int64_t num_keys_ = 0;
  std::vector<TraceHeadList> lists_;
};

/// [n, D] as [n / heads, heads, D].
Tensor with_heads(const Tensor& rows, std::int64_t heads) {
  Tensor result(rows.dtype(), {rows.dim(0) / heads, heads, rows.dim(1)});
  std::memcpy(result.bytes(), rows.bytes(), rows.size_bytes());
  return result;
}

}  // namespace

std::vector<TraceHeadList> trace_head_lists(const TraceForm& form, const TraceTensors& tensors,
                                            std::vector<std::string>& drawn) {
  return Reader(form, tensors, drawn).read();
}

Tensor query_of_lists(const TraceForm& form, const TraceTensors& tensors,
                      const std::vector<TraceHeadList>& lists) {
  const int axes = tensors.num_axes(form.query);
  const std::int64_t heads = tensors.dim(form.query, axes - 2);
  const std::int64_t group = heads / tensors.dim(form.key, form.head_axis);
  Integers rows;
  for (const TraceHeadList& list : lists) {
    for (std::int64_t token = 0; token < list.num_queries; ++token) {
      for (std::int64_t head = 0; head < group; ++head) {
        rows.push_back((list.first_query + token) * heads + list.head * group + head);
      }
    }
  }
  return with_heads(tensors.rows(form.query, axes - 1, rows, 1), group);
}

Tensor cache_of_lists(const TraceForm& form, const TraceTensors& tensors,
                      const std::vector<TraceHeadList>& lists, int plane, double scale) {
  const std::string& name = plane == 0 ? form.key : form.value;
  const int last = tensors.num_axes(name) - 1;
  const std::int64_t heads = tensors.dim(name, form.head_axis);
  const std::int64_t page = form.has_pages() ? tensors.dim(name, form.page_axis) : 1;
  if (form.plane_axis >= 0 && plane >= tensors.dim(name, form.plane_axis)) {
    tensors.refuse("{}: expected keys and values in axis {}, found {} of them", name,
                   form.plane_axis, tensors.dim(name, form.plane_axis));
  }
  Integers rows;
  for (const TraceHeadList& list : lists) {
    for (const std::int64_t key : list.keys) {
      if (!form.has_pages()) {
        rows.push_back(key * heads + list.head);
        continue;
      }
      if (key < 0 || key / page >= tensors.dim(name, 0)) {
        tensors.refuse("{}: expected a page below {}, found {}", name, tensors.dim(name, 0),
                       key / page);
      }
      std::int64_t row = key / page;
      for (int axis = 1; axis < last; ++axis) {
        const std::int64_t at = axis == form.plane_axis  ? plane
                                : axis == form.head_axis ? list.head
                                                         : key % page;
        row = row * tensors.dim(name, axis) + at;
      }
      rows.push_back(row);
    }
  }
  return with_heads(tensors.rows(name, last, rows, scale), 1);
}

}  // namespace attnbench
