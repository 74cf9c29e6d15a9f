// Keys and values of slots that both share, as vLLM's TurboQuant has them (semantics §5.8): into
// their bytes for a cache write, and back for attention. How the parts of a slot lie is
// kernels/common/slot_codes.cuh's to say; the arithmetic in between is here.
//
// `bits` are those of a code: 8, 4 or 3 of a key, 4 or 3 of a value. With 8 bits a key is e4m3;
// with fewer it is divided by its norm, rotated by the matrix of Hadamard, and each column becomes
// the index of the centroid that it is nearest to.
#pragma once

#include "kernels/common/slot_codes.cuh"

namespace attnbench::cpu {

/// A key of `width` columns into `to`, slot_key_bytes(bits, width) of them. `values` [width] are
/// used up. `centroids` [2^bits] ascend; they are not read for 8 bits, and width is a power of two
/// of at most attn::kMaxRotatedHead where they are.
void encode_slot_key(float* values, int width, int bits, const float* centroids, attn::u8* to);

/// A value of `width` columns, a multiple of 8, into `to`: codes, their step and the least value,
/// slot_value_bytes(bits, width) bytes.
void encode_slot_value(const float* values, int width, int bits, attn::u8* to);

/// What the bytes of a key mean, float32 [width]: the centroids, made as long as the stored norm
/// and rotated back. Codes of 8 bits are e4m3.
///
/// The norm that is divided out is that of the centroids themselves, so the key has the length of
/// the one that was stored, whatever its codes lost.
void decode_slot_key(const attn::u8* from, int width, int bits, const float* centroids,
                     float* destination);

/// What the bytes of a value mean, float32 [width]: code * step + least, which is rounded once
/// since the product is exact.
void decode_slot_value(const attn::u8* from, int width, int bits, float* destination);

}  // namespace attnbench::cpu
