// What one rank of a group starts from: its cache and slot mapping, and what all ranks have. Rank 0
// makes the inputs of a case once, as it does for simulated ranks, and hands each rank its share.
#pragma once

#include <string>

#include "backends/backend.h"
#include "backends/ranks/communicator.h"
#include "bench/process/parcel.h"

namespace attnbench {

/// The fields that problem_to_json() writes. Errors: E-FORMAT.
Problem problem_from_json(const std::string& text);

/// `inputs` are those of all ranks of the problem's group. Errors: E-CAPACITY.
Parcel pack_share(const Problem& problem, const BackendInputs& inputs, int rank);

/// Owns what the inputs of its pipeline point to.
class RankShare {
 public:
  /// Errors: those of ParcelReader.
  RankShare(const Parcel& parcel, const RankSeat& seat);
  RankShare(const RankShare&) = delete;
  RankShare& operator=(const RankShare&) = delete;

  const Problem& problem() const { return problem_; }
  const BackendInputs& inputs() const { return inputs_; }

 private:
  void read_attention(ParcelReader& parcel);
  void read_mla(ParcelReader& parcel);

  Problem problem_;
  BackendInputs inputs_;
  AttentionInputs attention_;
  MlaInputs mla_;
  MlaCache mla_cache_;
};

}  // namespace attnbench
