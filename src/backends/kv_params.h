// A type of the KV cache in the words of the kernels' parameters.
#pragma once

#include "core/error.h"
#include "core/numbers/kv_format.h"
#include "kernels/params.h"
#include "kernels/params_mla.h"

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

}  // namespace attnbench
