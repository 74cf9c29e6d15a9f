// What a backend of the multimodal encoder can do, as data, and its reasons against a problem
// (semantics §13.3, second table). One pipeline (encoder/pipeline.h) serves all four; they differ
// in these columns, above all in how the wrapper of each hands the lengths of the sequences over.
//
// Refusals name a backend as vLLM does ("FLASH_ATTN"), since users compare them with its messages;
// everything else names it as this program does ("MM_FLASH_ATTN").
#pragma once

#include <string>
#include <vector>

#include "backends/backend.h"
#include "metadata/encoder/sequences.h"

namespace attnbench {

struct MmCapability {
  std::string name;           // "MM_FLASH_ATTN"
  std::string upstream_name;  // "FLASH_ATTN", as reasons say it
  std::string description;
  MmLengthsBackend lengths = MmLengthsBackend::kTorchSdpa;
  std::vector<Dtype> dtypes;
  int head_size_multiple = 1;
  int min_head_size = 1;
  int max_head_size = 1 << 30;
  int min_sm = 0;
  bool batch_form = true;      // works without cu_seqlens
  bool other_key_len = false;  // there, key and query lengths may differ
  bool fp8 = false;
};

MmCapability mm_torch_sdpa_capability();
MmCapability mm_flash_attn_capability();
MmCapability mm_triton_attn_capability();
MmCapability mm_flashinfer_capability();

/// Every reason, in the order and words of §13; empty = supported.
std::vector<std::string> mm_refusals(const MmCapability& capability, const Problem& problem,
                                     const DeviceFacts& device);

}  // namespace attnbench
