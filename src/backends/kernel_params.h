// Small pieces of the kernels' parameters that several pipelines fill alike: how a type of the KV
// cache is written and read, which form of ALiBi a scenario means, and a copy that repeats one
// element. They hold no decision about attention; what a new cache type needs here is a case that
// the compiler names, as the switches have no default.
#pragma once

#include "core/error.h"
#include "core/numbers/kv_format.h"
#include "kernels/params.h"
#include "kernels/params_mla.h"
#include "metadata/mask/attention_math.h"
#include "ops/ops.h"

namespace attnbench {

/// CacheWriteParams::quantise of a cache of keys and values. E-INTERNAL for one of latents.
inline int cache_write_mode(KvCacheDtype dtype) {
  switch (kv_format(dtype).scales) {
    case KvScales::kNone:
      return 0;
    case KvScales::kTensor:
      return 1;
    case KvScales::kTokenHead:
      return 2;
    case KvScales::kEntry:
      break;
  }
  fail(ErrorKind::kInternal, "{} stores no keys and values", to_string(dtype));
}

/// How the kernels write and read an entry of a cache of latents. E-INTERNAL for one of keys and
/// values only.
inline attn::MlaEntry mla_entry_of(KvCacheDtype dtype) {
  switch (kv_format(dtype).scales) {
    case KvScales::kNone:
      return attn::MlaEntry::kCopy;
    case KvScales::kTensor:
      return attn::MlaEntry::kE4M3;
    case KvScales::kEntry:
      return attn::MlaEntry::kDsMla;
    case KvScales::kTokenHead:
      break;
  }
  fail(ErrorKind::kInternal, "{} stores no latents", to_string(dtype));
}

/// The kernels' name for a form of ALiBi. E-INTERNAL for a value that is no form.
inline attn::Alibi alibi_of(AlibiForm form) {
  switch (form) {
    case AlibiForm::kNone:
      return attn::Alibi::kNone;
    case AlibiForm::kKeyIndex:
      return attn::Alibi::kKeyIndex;
    case AlibiForm::kContextRelative:
      return attn::Alibi::kContextRelative;
    case AlibiForm::kDistance:
      return attn::Alibi::kDistance;
    case AlibiForm::kSqrt:
      return attn::Alibi::kSqrt;
  }
  fail(ErrorKind::kInternal, "{} is no form of ALiBi", static_cast<int>(form));
}

/// One element, many times: a scale for every head, a counter set to zero on the device. `count`
/// elements in a row at `output`, all of them that at `source`.
inline attn::CopyParams repeated_copy(attn::Element element, const void* source, void* output,
                                      int count) {
  attn::CopyParams copy{};
  copy.source_element = copy.output_element = element;
  copy.source = source;  // with strides of 0
  copy.output = output;
  copy.output_strides[2] = 1;
  copy.extents[0] = copy.extents[1] = copy.width = 1;
  copy.extents[2] = count;
  return copy;
}

}  // namespace attnbench
