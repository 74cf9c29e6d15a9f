// The choices of a scenario file that are words. What each word means is in the tables of
// enums.cpp, one row a value: a new value is an enumerator here and its row there, and the loader,
// messages and written results know it. No file holds the number of an enumerator.
#pragma once

#include <span>

#include "core/enum_names.h"

namespace attnbench {

enum class AttentionType {
  kDecoder,
  kEncoder,
  kEncoderOnly,
  kEncoderDecoder,
  kMla,
  kMmEncoder,
  kOp
};
enum class QueryDtype { kAuto, kFp8E4M3 };
enum class ProbabilityDtype { kAuto, kModel, kFp8E4M3 };
enum class Fp8Accumulation { kAuto, kFast };
enum class EncoderWindow { kSource, kSymmetric };
enum class AlibiKind { kNone, kLinear, kSqrt };
enum class SinksKind { kNone, kNormal, kValues };  // nothing, "normal", or a list: no table
enum class TritonPath { kAuto, k2d, k3d };
enum class SplitForm { kAuto, kSeparate, kJoined, kPlanned };
enum class CacheLayout { kNhd, kHnd };
enum class PthInt8Round { kHalfAway, kTrunc };
enum class CascadeMode { kAuto, kAlways, kNever };
enum class DcpComm { kAgRs, kAgAr, kA2a };
enum class DcpTransport { kSimulated, kNccl, kMpi };
enum class OutputQuantType { kNone, kFp8Static, kFp8Group128, kFp8Group64, kNvfp4 };
enum class Distribution { kNormal, kUniform, kOutlier, kProbe };
enum class L2Mode { kCold, kClean, kWarm };
enum class Pace { kCool, kSustained };
enum class TimingMode { kStream, kGraph };
enum class TimingOrder { kSequential, kAlternate };
enum class Switch { kAuto, kOn, kOff };
enum class MlaRefForm { kBoth, kMha, kMqa };
enum class WeightFormat { kAuto, kFp8, kNvfp4, kAwq };
enum class SparseIndices { kRandom, kIndexer };
enum class MmAttnDtype { kAuto, kFp8 };
enum class AmaxKind { kAbs, kSigned };
enum class OpKind {
  kReshapeAndCache,
  kMerge,
  kGather,
  kRope,
  kRopeAndCache,
  kQuantize,
  kDcpCorrect,
  kOutputQuant,
  kMmQuant,
  kMetadata,
  kIndexKeyCache,
  kIndexLogits,
  kIndexTopk
};
enum class OpCacheLayout { kAuto, kFa, kIx, kTr };
enum class RopePairs { kNeox, kGptJ };
enum class CosSinDtype { kAuto, kFloat32 };
enum class LseBase { kE, kTwo };

std::span<const EnumRow<AttentionType>> enum_rows(AttentionType);
std::span<const EnumRow<QueryDtype>> enum_rows(QueryDtype);
std::span<const EnumRow<ProbabilityDtype>> enum_rows(ProbabilityDtype);
std::span<const EnumRow<Fp8Accumulation>> enum_rows(Fp8Accumulation);
std::span<const EnumRow<EncoderWindow>> enum_rows(EncoderWindow);
std::span<const EnumRow<AlibiKind>> enum_rows(AlibiKind);
std::span<const EnumRow<TritonPath>> enum_rows(TritonPath);
std::span<const EnumRow<SplitForm>> enum_rows(SplitForm);
std::span<const EnumRow<CacheLayout>> enum_rows(CacheLayout);
std::span<const EnumRow<PthInt8Round>> enum_rows(PthInt8Round);
std::span<const EnumRow<CascadeMode>> enum_rows(CascadeMode);
std::span<const EnumRow<DcpComm>> enum_rows(DcpComm);
std::span<const EnumRow<DcpTransport>> enum_rows(DcpTransport);
std::span<const EnumRow<OutputQuantType>> enum_rows(OutputQuantType);
std::span<const EnumRow<Distribution>> enum_rows(Distribution);
std::span<const EnumRow<L2Mode>> enum_rows(L2Mode);
std::span<const EnumRow<Pace>> enum_rows(Pace);
std::span<const EnumRow<TimingMode>> enum_rows(TimingMode);
std::span<const EnumRow<TimingOrder>> enum_rows(TimingOrder);
std::span<const EnumRow<Switch>> enum_rows(Switch);
std::span<const EnumRow<MlaRefForm>> enum_rows(MlaRefForm);
std::span<const EnumRow<WeightFormat>> enum_rows(WeightFormat);
std::span<const EnumRow<SparseIndices>> enum_rows(SparseIndices);
std::span<const EnumRow<MmAttnDtype>> enum_rows(MmAttnDtype);
std::span<const EnumRow<AmaxKind>> enum_rows(AmaxKind);
std::span<const EnumRow<OpKind>> enum_rows(OpKind);
std::span<const EnumRow<OpCacheLayout>> enum_rows(OpCacheLayout);
std::span<const EnumRow<RopePairs>> enum_rows(RopePairs);
std::span<const EnumRow<CosSinDtype>> enum_rows(CosSinDtype);
std::span<const EnumRow<LseBase>> enum_rows(LseBase);

bool is_encoder_type(AttentionType type);  // encoder or encoder_only: no cache, non-causal
bool has_direct_kv(AttentionType type);    // those and mm_encoder: key and value as tensors

}  // namespace attnbench
