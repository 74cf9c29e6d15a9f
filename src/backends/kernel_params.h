// Small pieces of the kernels' parameters that several pipelines fill alike: how a type of the KV
// cache is written and read, which form of ALiBi a scenario means, and a copy that repeats one
// element. They hold no decision about attention; what a new cache type needs here is a case that
// the compiler names, as the switches have no default.
#pragma once

#include <optional>
#include <vector>

#include "core/error.h"
#include "core/numbers/kv_format.h"
#include "kernels/params.h"
#include "kernels/params_mla.h"
#include "metadata/kv_layout.h"
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
    case KvScales::kTokenHeadZero:
      return 3;
    case KvScales::kBlocks:
      return 4;
    case KvScales::kSlot:
      return 5;
    case KvScales::kEntry:
      break;
  }
  fail(ErrorKind::kInternal, "{} stores no keys and values", to_string(dtype));
}

/// The kernels' name for slots of these codes. E-INTERNAL where they have none.
inline attn::KvCoding slot_coding_of(const SlotCodes& slot) {
  for (const attn::KvCoding coding : {attn::KvCoding::kSlotK8V4, attn::KvCoding::kSlotK4V4,
                                      attn::KvCoding::kSlotK3V4, attn::KvCoding::kSlotK3V3}) {
    if (attn::slot_key_bits(coding) == slot.key_bits &&
        attn::slot_value_bits(coding) == slot.value_bits) {
      return coding;
    }
  }
  fail(ErrorKind::kInternal, "no kernel has slots of {} and {} bits", slot.key_bits,
       slot.value_bits);
}

/// Centroids of the rotated keys of a cache (§5.8); empty where it has none.
inline std::vector<float> cache_centroids(KvCacheDtype dtype, int head_size) {
  const std::optional<SlotCodes>& slot = kv_format(dtype).slot;
  return slot ? key_centroids(*slot, head_size) : std::vector<float>();
}

/// How the kernels read the numbers of a cache of keys and values.
inline attn::KvCoding kv_coding_of(KvCacheDtype dtype) {
  switch (kv_format(dtype).scales) {
    case KvScales::kTokenHeadZero:
      return attn::KvCoding::kInt4;
    case KvScales::kBlocks:
      return attn::KvCoding::kNvfp4;
    case KvScales::kSlot:
      return slot_coding_of(*kv_format(dtype).slot);
    case KvScales::kNone:
    case KvScales::kTensor:
    case KvScales::kTokenHead:
    case KvScales::kEntry:
      break;
  }
  return attn::KvCoding::kElements;
}

/// Where the scales that lie in a cache stand which begins at `data`.
inline void place_inner_scales(const KvLayout& layout, void* data, attn::CacheWriteParams& write) {
  if (layout.scale_offset >= 0) {
    const ScaleView view = per_token_head_scale_view(layout);
    write.key_scales = static_cast<float*>(data) + view.key_offset;
    write.value_scales = static_cast<float*>(data) + view.value_offset;
    write.scale_block_stride = view.block_stride;
    write.scale_slot_stride = view.slot_stride;
    write.scale_head_stride = view.head_stride;
  }
  if (layout.block_scales > 0) {
    auto* first = static_cast<unsigned char*>(data) + layout.block_scale_offset;
    write.block_scales = {first + layout.key_offset, first + layout.value_offset,
                          layout.block_stride, layout.block_scale_slot_stride,
                          layout.block_scale_head_stride};
  }
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
      return kv_format(dtype).packed->footer_bytes > 0 ? attn::MlaEntry::kModel1
                                                       : attn::MlaEntry::kDsMla;
    case KvScales::kTokenHead:
    case KvScales::kTokenHeadZero:
    case KvScales::kBlocks:
    case KvScales::kSlot:
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
