// Inputs whose scores have a given shape, as a file that a problem reads (contract.md section 5).
#pragma once

#include <filesystem>

#include "core/problem/problem.h"

namespace attnbench::matrix {

enum class Scores {
  kEqual,           // every key of a row has the same score, which is not 0
  kZero,            // the same, by queries of zeros
  kFirstDominates,  // the first key of a request is about 100 above the others
  kLastDominates,   // the same of the last one
  kLarge            // of magnitude around 100, of both signs
};

/// Writes the file and makes the problem read it; the file is gone with the object.
class CraftedInputs {
 public:
  CraftedInputs(Scores scores, Problem& problem);
  ~CraftedInputs();
  CraftedInputs(const CraftedInputs&) = delete;
  CraftedInputs& operator=(const CraftedInputs&) = delete;

 private:
  std::filesystem::path path_;
};

}  // namespace attnbench::matrix
