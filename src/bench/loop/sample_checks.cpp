// Blocks that change are kept before they are overwritten and put back before the next ones change,
// all by one table of moves a sample. Outputs are copied into `latest_` behind every sample; one
// that is chosen changes places with a copy that is not needed any more, so that choosing costs
// nothing on the device.
#include "bench/loop/sample_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace attnbench {

SampleChecks::SampleChecks(Pipeline& pipeline, SampleSide side,
                           std::unique_ptr<SampleMemory> memory, std::size_t most_poison,
                           bool whole)
    : pipeline_(pipeline),
      side_(std::move(side)),
      memory_(std::move(memory)),
      poisons_workspaces_(side_.workspace_bytes <= most_poison),
      whole_(whole) {
  for (const SampleSide::Query& query : side_.query) {
    const auto bytes = static_cast<std::size_t>(query.rows * query.row_elements) *
                       static_cast<std::size_t>(query.element_bytes);
    queries_.push_back(memory_->allocate(bytes));
    memory_->copy(queries_.back(), query.memory, bytes);
  }
  restore();  // Why here: its kernel is compiled when it is first launched
  if (!whole_) return;
  const std::size_t most_copies = side_.blocks ? side_.blocks->num_requests() : 0;
  std::int64_t longest = 0;
  for (const SampleSide::Plane& plane : side_.planes) {
    block_room_.push_back(memory_->allocate(most_copies * static_cast<std::size_t>(plane.bytes)));
    longest = std::max(longest, plane.bytes);
  }
  poisoned_block_ = memory_->allocate(static_cast<std::size_t>(longest));
  memory_->fill(poisoned_block_, 0xFF, static_cast<std::size_t>(longest));
  if (most_copies > 0 && longest > 0) {
    memory_->table({{poisoned_block_, block_room_.front(), side_.planes.front().bytes}});
    memory_->move(0, 1);
  }
  latest_ = new_copies();
  std::int64_t bytes = 1;
  for (const SampleSide::Output& output : side_.outputs) bytes += output.bytes;
  num_judged_ =
      std::clamp(static_cast<std::size_t>(kMostKeptBytes / bytes), kLeastJudged, kMostJudged);
  keep();
  validated_ = memory_->sums();
}

std::vector<void*> SampleChecks::new_copies() {
  std::vector<void*> copies;
  for (const SampleSide::Output& output : side_.outputs) {
    copies.push_back(memory_->allocate(static_cast<std::size_t>(output.bytes)));
  }
  return copies;
}

/// The table: blocks of the last sample go back, new ones are kept, become poison, and get the
/// bytes of others.
void SampleChecks::plan_moves() {
  std::vector<attn::BlockMove> moves;
  const auto block = [&](std::size_t plane, std::int64_t unit) -> void* {
    return side_.planes[plane].first + unit * side_.planes[plane].stride_bytes;
  };
  const auto room = [&](std::size_t plane, std::size_t copy) -> void* {
    return static_cast<std::byte*>(block_room_[plane]) +
           static_cast<std::int64_t>(copy) * side_.planes[plane].bytes;
  };
  const auto add = [&](const auto& source, const auto& target) {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      for (std::size_t p = 0; p < side_.planes.size(); ++p) {
        moves.push_back({source(p, i), target(p, i), side_.planes[p].bytes});
      }
    }
    return moves.size();
  };
  const auto kept = [&](std::size_t p, std::size_t i) { return room(p, i); };
  const auto to = [&](std::size_t p, std::size_t i) { return block(p, copies_[i].target.unit); };
  const auto from = [&](std::size_t p, std::size_t i) { return block(p, copies_[i].source.unit); };
  const auto poison = [&](std::size_t, std::size_t) { return poisoned_block_; };

  const std::size_t back = add(kept, to);
  if (side_.blocks) copies_ = side_.blocks->copies(nonce_);
  const std::size_t saved = add(to, kept);
  const std::size_t poisoned = add(poison, to);
  const std::size_t all = add(from, to);
  memory_->table(moves);
  memory_->move(0, back);
  memory_->move(back, saved - back);
  memory_->move(saved, poisoned - saved);
  first_new_move_ = poisoned;
  num_new_moves_ = all - poisoned;
}

void SampleChecks::poison() {
  if (!whole_) return;
  do {
    nonce_ = random_();
  } while (nonce_ == 0);
  plan_moves();
  if (poisons_workspaces_) {
    pipeline_.poison_outputs();
  } else {
    for (const SampleSide::Output& output : side_.outputs) {
      memory_->fill(output.memory, 0xFF, static_cast<std::size_t>(output.bytes));
    }
  }
  for (const SampleSide::Query& query : side_.query) {
    memory_->fill(query.memory, 0xFF,
                  static_cast<std::size_t>(query.rows * query.row_elements * query.element_bytes));
  }
}

void SampleChecks::rewrite() {
  if (whole_) memory_->move(first_new_move_, num_new_moves_);
}

void SampleChecks::restore() {
  for (std::size_t i = 0; i < side_.query.size(); ++i) {
    const SampleSide::Query& query = side_.query[i];
    attn::RedrawParams params{};
    params.source = queries_[i];
    params.target = query.memory;
    params.nonce = nonce_;
    params.num_rows = query.rows;
    params.row_elements = query.row_elements;
    params.first_index = query.first_index;
    params.index_stride = query.index_stride;
    memory_->redraw(query.element_bytes, params);
  }
  memory_->show();
}

void SampleChecks::keep() {
  if (!whole_) return;
  if (side_.collect && nonce_ != 0) side_.collect();
  for (std::size_t i = 0; i < side_.outputs.size(); ++i) {
    const SampleSide::Output& output = side_.outputs[i];
    memory_->copy(latest_[i], output.memory, static_cast<std::size_t>(output.bytes));
  }
  memory_->clear_sums();
  for (std::size_t i = 0; i < side_.outputs.size(); ++i) {
    attn::DigestParams params{};
    params.data = latest_[i];
    params.bytes = side_.outputs[i].bytes;
    params.element = side_.outputs[i].element;
    params.salt = (i + 1) << 48;
    memory_->digest(params);
  }
}

void SampleChecks::finish(std::optional<std::int64_t> sample) {
  if (!whole_) return;
  const attn::SampleDigest digest = memory_->sums();
  if (!sample) return;
  look_at(*sample, digest);
  const bool is_repeated = last_hash_ == digest.hash && !has_repeated_;
  has_repeated_ = has_repeated_ || is_repeated;
  last_hash_ = digest.hash;
  choose(*sample, is_repeated);
}

void SampleChecks::look_at(std::int64_t sample, const attn::SampleDigest& digest) {
  if (!problem_.empty()) return;
  if (digest.poison > validated_.poison) {
    problem_ = fmt::format(
        "timed sample {}: {} elements of its output were not there when its time ended: run() has "
        "to compute all of it anew each time, on the stream that it is given",
        sample, digest.poison - validated_.poison);
  } else if (digest.nans > validated_.nans) {
    problem_ = fmt::format(
        "timed sample {}: {} elements of its output are NaN, beside those that are so in the "
        "validated run",
        sample, digest.nans - validated_.nans);
  }
}

/// For the output of the next sample, when those of the last one are kept. False where the device
/// has no memory for more than the least number: from here on that many are kept.
bool SampleChecks::make_next_copies() {
  try {
    latest_ = new_copies();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCapacity || kept_.size() <= kLeastJudged) throw;
    latest_ = std::move(kept_.back().outputs);
    kept_.pop_back();
    num_judged_ = kept_.size();
    return false;
  }
  return true;
}

/// Every sample has the same chance (reservoir sampling). The first one whose bytes are those of
/// the one before is taken beside: right only where outputs do not depend on the signs of the
/// query.
void SampleChecks::choose(std::int64_t sample, bool is_repeated) {
  ++seen_;
  if (kept_.size() < num_judged_) {
    kept_.push_back({sample, nonce_, latest_});
    if (make_next_copies()) return;
  }
  const auto place =
      static_cast<std::size_t>(std::uniform_int_distribution<std::int64_t>(0, seen_ - 1)(random_));
  Kept kept{sample, nonce_, latest_};
  if (place < num_judged_) {
    std::swap(kept_[place], kept);
    latest_ = std::move(kept.outputs);
    return;
  }
  if (!is_repeated) return;
  repeated_ = std::move(kept);
  make_next_copies();
}

void SampleChecks::end() {
  nonce_ = 0;
  if (whole_) plan_moves();
  copies_.clear();
  restore();
}

std::vector<TimedSample> SampleChecks::take_samples() {
  std::vector<TimedSample> samples;
  if (repeated_) kept_.push_back(*std::exchange(repeated_, std::nullopt));
  std::sort(kept_.begin(), kept_.end(),
            [](const Kept& a, const Kept& b) { return a.number < b.number; });
  for (const Kept& kept : kept_) {
    for (std::size_t i = 0; i < side_.outputs.size(); ++i) {
      const SampleSide::Output& output = side_.outputs[i];
      memory_->copy(output.memory, kept.outputs[i], static_cast<std::size_t>(output.bytes));
    }
    samples.push_back({kept.number, kept.nonce, side_.read()});
  }
  kept_.clear();
  return samples;
}

}  // namespace attnbench
