// What is in the files that a problem names, as hashes: their paths say nothing of it. A result
// keeps them, so that two runs of the same scenario over different scales or tensors are told
// apart, by readers and by the gate.
#pragma once

#include <map>
#include <string>

#include "core/problem/problem.h"

namespace attnbench {

/// Reads every file once.
class FileHashes {
 public:
  /// SHA-256 of the files that the problem names under kScaleFileKeys and inputs.file, by key. A
  /// file that is not there has none. Errors: those of read_scale_text; E-IO.
  std::map<std::string, std::string> of(const Problem& problem);

 private:
  std::map<std::string, std::string> by_path_;
};

}  // namespace attnbench
