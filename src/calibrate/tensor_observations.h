// Observations that lie in safetensors files, captured from a model or saved by a run.
//
// A file has the tensors of forwards under one of two naming schemes. Captured: <layer>.q,
// <layer>.k and <layer>.v, with <layer>.cu_seqlens in the same file where the rows are several
// sequences. Saved by `run --save-tensors`: query, key and value under the names of contract
// section 5, of one layer, with metadata that say which attention they belong to. A layer's tensors
// may lie in several files; a role (q, k or v) that occurs in several is observed as often, one
// forward a file, in the order in which the files are given.
//
// All headers are read, and everything that they can show to be wrong is refused, before the first
// tensor is: a set of files may be larger than memory, and hours of reading should not end in a
// message about the last one. Tensors are read again each time, so that only one layer's are held.
//
// A saved result may hold its query in several forms. The one before quantisation is taken where it
// is there; where only the quantised one is, that is used and a notice says so, since scales that
// are made from values which were already rounded look better than they are.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "calibrate/observations.h"
#include "inputs/files/scale_file.h"

namespace attnbench {

/// Whether a layer of theirs is one of latent attention: which format is meant if none is named.
bool hold_latents(const std::vector<std::filesystem::path>& files);

/// Layers come in natural order (layer 2 before layer 10), or as `layers` has them. What is left
/// out, and attention that had to be guessed, is in notices(). `layers`: those that must be there
/// and are taken; empty = all. `format` decides which roles are needed. Errors: those of the
/// headers; E-VALUE for a layer that is missing; E-FORMAT for a role that the format needs and that
/// a layer does not have, or has less often than its others; E-DTYPE unless of a floating type;
/// E-VALUE for the result of a backend that is unknown and whose rules the file does not state.
std::unique_ptr<Observations> tensor_observations(const std::vector<std::filesystem::path>& files,
                                                  ScaleFormat format,
                                                  const std::vector<std::string>& layers,
                                                  const FindRules& find_rules);

}  // namespace attnbench
