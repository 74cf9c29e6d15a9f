// Other inputs for every timed sample, made in place: fresh signs for the elements of the query,
// and a block of keys and values that becomes a copy of another one. And what is kept of a sample:
// sums over the bytes of its output.
//
// All of it is a function of a number that is drawn for the sample, so that the host can make the
// same inputs once more and judge what came out. The functions do one piece of the work each; a
// kernel gives every thread a piece, the CPU counts through them.
#pragma once

#include "kernels/params_measure.h"

namespace attn {

/// One block of Philox4x32-10 (Salmon et al., 2011) under the key `seed`, of which the counter is
/// {index low, index high, stream, 0}.
struct RedrawBits {
  unsigned lanes[4];
};
ATTN_FN RedrawBits redraw_bits(u64 seed, u64 index, unsigned stream) {
  constexpr u64 kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr unsigned kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  RedrawBits c{{static_cast<unsigned>(index), static_cast<unsigned>(index >> 32), stream, 0}};
  unsigned key0 = static_cast<unsigned>(seed), key1 = static_cast<unsigned>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64 product0 = kMultiplier0 * c.lanes[0], product1 = kMultiplier1 * c.lanes[2];
    c = {{static_cast<unsigned>(product1 >> 32) ^ c.lanes[1] ^ key0,
          static_cast<unsigned>(product1),
          static_cast<unsigned>(product0 >> 32) ^ c.lanes[3] ^ key1,
          static_cast<unsigned>(product0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

/// What the bits of a redraw decide.
constexpr unsigned kRedrawSigns = 1;
constexpr unsigned kRedrawBlocks = 2;

/// Bit i: whether the sign of element 32 * word + i flips. 0 where there is no redraw.
ATTN_FN unsigned redraw_signs(u64 nonce, u64 word) {
  if (nonce == 0) return 0;
  const RedrawBits bits = redraw_bits(nonce, word / 4, kRedrawSigns);
  const unsigned lane = static_cast<unsigned>(word % 4);
  // Why no index: an array that is indexed at run time lies in local memory.
  return lane == 0   ? bits.lanes[0]
         : lane == 1 ? bits.lanes[1]
         : lane == 2 ? bits.lanes[2]
                     : bits.lanes[3];
}

/// The same of the elements [index, index + count), count <= 32, from bit 0 on.
ATTN_FN unsigned redraw_signs_from(u64 nonce, u64 index, int count) {
  const u64 word = index / 32;
  const unsigned shift = static_cast<unsigned>(index % 32);
  unsigned signs = redraw_signs(nonce, word) >> shift;
  if (shift + static_cast<unsigned>(count) > 32) {
    signs |= redraw_signs(nonce, word + 1) << (32 - shift);
  }
  return signs;
}

/// Words of `kElementBytes` wide elements whose highest bits are flipped: word `lane` of elements
/// whose signs begin at bit 0 of `signs`.
template <int kElementBytes>
ATTN_FN unsigned sign_mask(unsigned signs, int lane) {
  constexpr int kElements = 4 / kElementBytes;
  unsigned mask = 0;
  for (int i = 0; i < kElements; ++i) {
    const unsigned sign = signs >> (lane * kElements + i) & 1u;
    mask |= sign << (8 * kElementBytes * (i + 1) - 1);
  }
  return mask;
}

struct alignas(16) RedrawVector {
  unsigned words[4];
};

/// Elements of a piece of redraw_piece(): 16 bytes, or one element where rows are not made of such.
template <int kElementBytes, bool kVector>
ATTN_FN constexpr int redraw_piece_elements() {
  return kVector ? 16 / kElementBytes : 1;
}

/// Piece `piece` of the target: the elements of the source with the signs that the nonce gives
/// them.
template <int kElementBytes, bool kVector>
ATTN_FN void redraw_piece(const RedrawParams& p, i64 piece) {
  constexpr int kElements = redraw_piece_elements<kElementBytes, kVector>();
  const i64 element = piece * kElements;
  if (element >= p.num_rows * p.row_elements) return;
  const i64 row = element / p.row_elements;
  const i64 index = p.first_index + row * p.index_stride + (element - row * p.row_elements);
  const unsigned signs = redraw_signs_from(p.nonce, static_cast<u64>(index), kElements);
  if constexpr (kVector) {
    RedrawVector vector = static_cast<const RedrawVector*>(p.source)[piece];
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
    for (int lane = 0; lane < 4; ++lane) {
      vector.words[lane] ^= sign_mask<kElementBytes>(signs, lane);
    }
    static_cast<RedrawVector*>(p.target)[piece] = vector;
  } else {
    const unsigned char* from = static_cast<const unsigned char*>(p.source) + piece * kElementBytes;
    unsigned char* to = static_cast<unsigned char*>(p.target) + piece * kElementBytes;
    for (int i = 0; i < kElementBytes; ++i) to[i] = from[i];
    to[kElementBytes - 1] = static_cast<unsigned char>(to[kElementBytes - 1] ^ (signs & 1u) << 7);
  }
}

constexpr int kMovePieceBytes = 16;

/// Piece `piece` of one row of a table of copies.
ATTN_FN void move_piece(const BlockMove& move, i64 piece) {
  const i64 first = piece * kMovePieceBytes;
  if (first >= move.bytes) return;
  const char* from = static_cast<const char*>(move.source) + first;
  char* to = static_cast<char*>(move.target) + first;
  const u64 places = reinterpret_cast<u64>(from) | reinterpret_cast<u64>(to);
  if (places % kMovePieceBytes == 0 && first + kMovePieceBytes <= move.bytes) {
    *reinterpret_cast<RedrawVector*>(to) = *reinterpret_cast<const RedrawVector*>(from);
    return;
  }
  for (i64 i = 0; i < kMovePieceBytes && first + i < move.bytes; ++i) to[i] = from[i];
}

ATTN_FN u64 mixed(u64 x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

/// Bits of an element without its sign that are more than `limit` are a NaN; `mask` 0: its type has
/// none.
struct NanRule {
  int bytes;
  unsigned mask;
  unsigned limit;
};
ATTN_FN NanRule nan_rule(Element element) {
  switch (element) {
    case Element::kF32:
      return {4, 0x7FFFFFFFu, 0x7F800000u};
    case Element::kF16:
      return {2, 0x7FFFu, 0x7C00u};
    case Element::kBF16:
      return {2, 0x7FFFu, 0x7F80u};
    case Element::kE4M3:
      return {1, 0x7Fu, 0x7Eu};
    case Element::kE5M2:
      return {1, 0x7Fu, 0x7Cu};
    default:
      return {1, 0, 0};
  }
}

/// Counts NaN, and poison among them, in the elements of a vector.
template <int kBytes>
ATTN_FN void count_nans(const RedrawVector& vector, const NanRule& rule, SampleDigest& sums) {
  constexpr unsigned kAll = kBytes == 4 ? 0xFFFFFFFFu : (1u << (8 * (kBytes % 4))) - 1;
  unsigned nans = 0, poison = 0;
  for (int word = 0; word < 4; ++word) {
    for (int at = 0; at < 4; at += kBytes) {
      const unsigned bits = vector.words[word] >> (8 * at) & kAll;
      nans += (bits & rule.mask) > rule.limit ? 1 : 0;
      poison += bits == kAll ? 1 : 0;
    }
  }
  sums.nans += nans;
  sums.poison += poison;
}

/// Adds 16 bytes of the data to the sums. Sums do not depend on the order of their parts.
ATTN_FN void digest_piece(const DigestParams& p, i64 piece, SampleDigest& sums) {
  const i64 first = piece * 16;
  if (first >= p.bytes) return;
  RedrawVector vector{};
  if (first + 16 <= p.bytes) {
    vector = static_cast<const RedrawVector*>(p.data)[piece];
  } else {
    const int rest = static_cast<int>(p.bytes - first);
    // Why all words: an array that is indexed at run time lies in local memory.
    for (int i = 0; i < 16; ++i) {
      const unsigned byte = i < rest ? static_cast<const unsigned char*>(p.data)[first + i] : 0;
      vector.words[i / 4] |= byte << (i % 4 * 8);
    }
  }
  const u64 low = vector.words[0] | static_cast<u64>(vector.words[1]) << 32;
  const u64 high = vector.words[2] | static_cast<u64>(vector.words[3]) << 32;
  const u64 place = p.salt + static_cast<u64>(piece) * 2;
  sums.hash += mixed(low + mixed(place + 1)) + mixed(high + mixed(place + 2));
  const NanRule rule = nan_rule(p.element);
  if (rule.mask == 0) return;
  // What is missing of the last vector is 0.
  if (rule.bytes == 4) return count_nans<4>(vector, rule, sums);
  if (rule.bytes == 2) return count_nans<2>(vector, rule, sums);
  count_nans<1>(vector, rule, sums);
}

}  // namespace attn
