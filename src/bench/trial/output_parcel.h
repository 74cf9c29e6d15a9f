// What a run left on its way to a judge in another process, as a parcel (bench/process/parcel.h).
//
// The child that ran a user's code sends it, and that code may have sent it in the child's place or
// may still write to the file, so the receiver trusts neither text nor file: it copies the bytes
// before it looks at them and takes no size at its word. What the sizes must be for the problem of
// a job is for the judge to know; here a text and a file either belong together or are an error.
//
// The file is gone when both sides have closed it, whichever of them dies first.
#pragma once

#include <string>

#include "backends/backend.h"
#include "bench/process/frames.h"
#include "bench/process/parcel.h"
#include "bench/trial/job_judge.h"

namespace attnbench {

/// Errors: those of ParcelWriter. Each tensor is let go when it is packed, so that a cache of many
/// gigabytes is not there twice.
Parcel pack(const Submission& what, PipelineOutput&& output);

/// What pack() was given. Names, types and shapes of the tensors are what the sender says they are:
/// check_form() comes before anything is compared.
struct Unpacked {
  Submission what;
  PipelineOutput output;
};

/// Empties the file while it reads it. Errors: those of ParcelReader, for anything that pack() does
/// not write.
Unpacked unpack(const std::string& text, const Descriptor& file);

/// For a receiver that does not trust the sender: whether what arrived has the shapes and element
/// types that comparisons rely on, and all tensors that belong together. Why types: the limits of a
/// verdict go by that of the output. Errors: E-INTERNAL naming the tensor.
void check_form(const Problem& problem, RunKind run, const PipelineOutput& output);

}  // namespace attnbench
