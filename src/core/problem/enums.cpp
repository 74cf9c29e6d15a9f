// One table for each enum: the word that scenario files, options and results use, and what it
// means. The words are part of the contract with users; the meanings are for readers of this file
// and of the schema. The order within a table is that of the enumerators, which the compiler
// checks, and also that in which messages list the words.
#include "core/problem/enums.h"

namespace attnbench {

std::span<const EnumRow<AttentionType>> enum_rows(AttentionType) {
  using enum AttentionType;
  static constexpr auto kRows = every_value<EnumRow<AttentionType>>({
      {kDecoder, "decoder", "causal attention of a decoder over its paged cache"},
      {kEncoder, "encoder", "every token sees every token; keys are read as they come"},
      {kEncoderOnly, "encoder_only", "the same in a model without a decoder"},
      {kEncoderDecoder, "encoder_decoder",
       "cross attention: seq_len is the length of the encoder output"},
      {kMla, "mla", "multi-head latent attention"},
      {kMmEncoder, "mm_encoder", "the vision encoder of a multimodal model"},
      {kOp, "op", "one single operation, given by the section op"},
  });
  return kRows;
}

std::span<const EnumRow<QueryDtype>> enum_rows(QueryDtype) {
  using enum QueryDtype;
  static constexpr auto kRows = every_value<EnumRow<QueryDtype>>({
      {kAuto, "auto", "e4m3 where the backend quantises queries, else the type of the model"},
      {kFp8E4M3, "fp8_e4m3", "e4m3 with q_scale"},
  });
  return kRows;
}

std::span<const EnumRow<ProbabilityDtype>> enum_rows(ProbabilityDtype) {
  using enum ProbabilityDtype;
  static constexpr auto kRows = every_value<EnumRow<ProbabilityDtype>>({
      {kAuto, "auto", "what the kernel of the device does; model on the CPU"},
      {kModel, "model", "the type of the model, or wider"},
      {kFp8E4M3, "fp8_e4m3", "e4m3 of 2^8 P, as on matrix units that cannot mix types"},
  });
  return kRows;
}

std::span<const EnumRow<Fp8Accumulation>> enum_rows(Fp8Accumulation) {
  using enum Fp8Accumulation;
  static constexpr auto kRows = every_value<EnumRow<Fp8Accumulation>>({
      {kAuto, "auto", "sums of P V reach f32 before the bits that matrix units drop show"},
      {kFast, "fast", "as the matrix units sum e4m3 products: about 13 bits on SM 9.0"},
  });
  return kRows;
}

std::span<const EnumRow<EncoderWindow>> enum_rows(EncoderWindow) {
  using enum EncoderWindow;
  static constexpr auto kRows = every_value<EnumRow<EncoderWindow>>({
      {kSource, "source", "keys before the token only, as in the source of layout IX"},
      {kSymmetric, "symmetric", "as many keys before the token as behind it"},
  });
  return kRows;
}

std::span<const EnumRow<AlibiKind>> enum_rows(AlibiKind) {
  using enum AlibiKind;
  static constexpr auto kRows = every_value<EnumRow<AlibiKind>>({
      {kNone, "none", "no bias"},
      {kLinear, "linear",
       "slope times the position of the key or its distance, as the backend has it"},
      {kSqrt, "sqrt", "-slope * sqrt(distance)"},
  });
  return kRows;
}

std::span<const EnumRow<TritonPath>> enum_rows(TritonPath) {
  using enum TritonPath;
  static constexpr auto kRows = every_value<EnumRow<TritonPath>>({
      {kAuto, "auto", "by the batch"},
      {k2d, "2d", "one pass over the keys"},
      {k3d, "3d", "segments of keys and a reduction"},
  });
  return kRows;
}

std::span<const EnumRow<SplitForm>> enum_rows(SplitForm) {
  using enum SplitForm;
  static constexpr auto kRows = every_value<EnumRow<SplitForm>>({
      {kAuto, "auto", "by the batch"},
      {kSeparate, "separate",
       "partial results of as many splits for every request, then a launch "
       "that combines them"},
      {kJoined, "joined", "the same, combined by the launch that makes them"},
      {kPlanned, "planned", "parts of equal load, dealt out on the device from the lengths"},
  });
  return kRows;
}

std::span<const EnumRow<CacheLayout>> enum_rows(CacheLayout) {
  using enum CacheLayout;
  static constexpr auto kRows = every_value<EnumRow<CacheLayout>>({
      {kNhd, "NHD", "tokens of a block first, then heads"},
      {kHnd, "HND", "heads first, then the tokens of a block"},
  });
  return kRows;
}

std::span<const EnumRow<PthInt8Round>> enum_rows(PthInt8Round) {
  using enum PthInt8Round;
  static constexpr auto kRows = every_value<EnumRow<PthInt8Round>>({
      {kHalfAway, "half_away", "to the nearest code, halves away from zero"},
      {kTrunc, "trunc", "towards zero, as older kernels"},
  });
  return kRows;
}

std::span<const EnumRow<CascadeMode>> enum_rows(CascadeMode) {
  using enum CascadeMode;
  static constexpr auto kRows = every_value<EnumRow<CascadeMode>>({
      {kAuto, "auto", "where the heuristic of vLLM says so"},
      {kAlways, "always", "the common prefix is attended to once for all requests"},
      {kNever, "never", "every request attends to all its keys"},
  });
  return kRows;
}

std::span<const EnumRow<DcpComm>> enum_rows(DcpComm) {
  using enum DcpComm;
  static constexpr auto kRows = every_value<EnumRow<DcpComm>>({
      {kAgRs, "ag_rs", "all-gather of queries and LSEs, reduce-scatter of outputs"},
      {kAgAr, "ag_ar", "all-gather of queries and LSEs, all-reduce of outputs"},
      {kA2a, "a2a", "all-to-all of partial outputs and LSEs"},
  });
  return kRows;
}

std::span<const EnumRow<DcpTransport>> enum_rows(DcpTransport) {
  using enum DcpTransport;
  static constexpr auto kRows = every_value<EnumRow<DcpTransport>>({
      {kSimulated, "simulated", "ranks in one process on one device"},
      {kNccl, "nccl", "each rank on a GPU of its own"},
      {kMpi, "mpi", "each rank a process on the CPU"},
  });
  return kRows;
}

std::span<const EnumRow<OutputQuantType>> enum_rows(OutputQuantType) {
  using enum OutputQuantType;
  static constexpr auto kRows = every_value<EnumRow<OutputQuantType>>({
      {kNone, "none", "the type of the model"},
      {kFp8Static, "fp8_static", "e4m3 with one given scale"},
      {kFp8Group128, "fp8_group128", "e4m3 with a scale for 128 columns of a token"},
      {kFp8Group64, "fp8_group64", "e4m3 with a scale for 64 columns of a token"},
      {kNvfp4, "nvfp4", "e2m1 with an e4m3 scale for 16 columns of a token"},
  });
  return kRows;
}

std::span<const EnumRow<Distribution>> enum_rows(Distribution) {
  using enum Distribution;
  static constexpr auto kRows = every_value<EnumRow<Distribution>>({
      {kNormal, "normal", "normal with mean 0 and inputs.std"},
      {kUniform, "uniform", "uniform with mean 0 and inputs.std"},
      {kOutlier, "outlier", "normal with a few large channels and tokens"},
      {kProbe, "probe", "normal, with needles among the keys and biased values"},
  });
  return kRows;
}

std::span<const EnumRow<L2Mode>> enum_rows(L2Mode) {
  using enum L2Mode;
  static constexpr auto kRows = every_value<EnumRow<L2Mode>>({
      {kCold, "cold", "the last-level cache holds nothing of the case before a sample"},
      {kClean, "clean", "the same, and nothing in it has to be written back"},
      {kWarm, "warm", "it holds what the launch before left there"},
  });
  return kRows;
}

std::span<const EnumRow<Pace>> enum_rows(Pace) {
  using enum Pace;
  static constexpr auto kRows = every_value<EnumRow<Pace>>({
      {kCool, "cool", "a rest before every sample, so that nothing throttles the device"},
      {kSustained, "sustained", "samples follow each other at once"},
  });
  return kRows;
}

std::span<const EnumRow<TimingMode>> enum_rows(TimingMode) {
  using enum TimingMode;
  static constexpr auto kRows = every_value<EnumRow<TimingMode>>({
      {kStream, "stream", "launched one by one on a stream"},
      {kGraph, "graph", "captured and launched as a graph"},
  });
  return kRows;
}

std::span<const EnumRow<TimingOrder>> enum_rows(TimingOrder) {
  using enum TimingOrder;
  static constexpr auto kRows = every_value<EnumRow<TimingOrder>>({
      {kSequential, "sequential", "one backend of a case after another"},
      {kAlternate, "alternate", "in turns, round by round"},
  });
  return kRows;
}

std::span<const EnumRow<Switch>> enum_rows(Switch) {
  using enum Switch;
  static constexpr auto kRows = every_value<EnumRow<Switch>>({
      {kAuto, "auto", "as the backend does it by itself"},
      {kOn, "on", "always"},
      {kOff, "off", "never"},
  });
  return kRows;
}

std::span<const EnumRow<MlaRefForm>> enum_rows(MlaRefForm) {
  using enum MlaRefForm;
  static constexpr auto kRows = every_value<EnumRow<MlaRefForm>>({
      {kBoth, "both", "expanded heads for prefills, latents for decodes"},
      {kMha, "mha", "expanded heads"},
      {kMqa, "mqa", "latents"},
  });
  return kRows;
}

std::span<const EnumRow<WeightFormat>> enum_rows(WeightFormat) {
  using enum WeightFormat;
  static constexpr auto kRows = every_value<EnumRow<WeightFormat>>({
      {kAuto, "auto", "attention.dtype"},
      {kFp8, "fp8", "e4m3 with one scale, or one for each block"},
      {kNvfp4, "nvfp4", "packed e2m1, refused"},
      {kAwq, "awq", "packed 4-bit integers, refused"},
  });
  return kRows;
}

std::span<const EnumRow<SparseIndices>> enum_rows(SparseIndices) {
  using enum SparseIndices;
  static constexpr auto kRows = every_value<EnumRow<SparseIndices>>({
      {kRandom, "random", "drawn"},
      {kIndexer, "indexer", "chosen by an indexer in the step"},
  });
  return kRows;
}

std::span<const EnumRow<MmAttnDtype>> enum_rows(MmAttnDtype) {
  using enum MmAttnDtype;
  static constexpr auto kRows = every_value<EnumRow<MmAttnDtype>>({
      {kAuto, "auto", "the type of the model"},
      {kFp8, "fp8", "query, key and value in e4m3"},
  });
  return kRows;
}

std::span<const EnumRow<AmaxKind>> enum_rows(AmaxKind) {
  using enum AmaxKind;
  static constexpr auto kRows = every_value<EnumRow<AmaxKind>>({
      {kAbs, "abs", "the largest magnitude"},
      {kSigned, "signed", "the largest signed value, as in vLLM"},
  });
  return kRows;
}

std::span<const EnumRow<OpKind>> enum_rows(OpKind) {
  using enum OpKind;
  static constexpr auto kRows = every_value<EnumRow<OpKind>>({
      {kReshapeAndCache, "reshape_and_cache", "new keys and values, or latents, into their slots"},
      {kMerge, "merge", "two partial results with LSEs become one"},
      {kGather, "gather", "latent entries of paged requests become rows"},
      {kRope, "rope", "rotary position embedding of queries and keys"},
      {kRopeAndCache, "rope_and_cache", "rotation and cache write in one kernel"},
      {kQuantize, "quantize", "queries, or int8 queries, keys and values, as attention reads them"},
      {kDcpCorrect, "dcp_correct", "ranks' partial results become one"},
      {kOutputQuant, "output_quant", "an attention output in the type of the next layer"},
      {kMmQuant, "mm_quant", "query, key and value of a vision encoder in e4m3"},
      {kMetadata, "metadata", "the slices of a batch for its decodes and its prefills"},
      {kIndexKeyCache, "index_key_cache", "new keys of a sparse indexer in e4m3 into their slots"},
      {kIndexLogits, "index_logits", "how much each key of a request matters to a token"},
      {kIndexTopk, "index_topk", "the slots of the keys that matter most to each token"},
  });
  return kRows;
}

std::span<const EnumRow<OpCacheLayout>> enum_rows(OpCacheLayout) {
  using enum OpCacheLayout;
  static constexpr auto kRows = every_value<EnumRow<OpCacheLayout>>({
      {kAuto, "auto", "TR, IX or FA by the operation and the cache"},
      {kFa, "FA", "[2, NB, bs, Hk, D] of FLASH_ATTN"},
      {kIx, "IX", "[P, NB, Hk, bs, D] of FLASH_ATTN_IX"},
      {kTr, "TR", "[NB, 2, bs, Hk, D] of TRITON_ATTN"},
  });
  return kRows;
}

std::span<const EnumRow<RopePairs>> enum_rows(RopePairs) {
  using enum RopePairs;
  static constexpr auto kRows = every_value<EnumRow<RopePairs>>({
      {kNeox, "neox", "element i turns with element i + rotary_dim / 2"},
      {kGptJ, "gptj", "neighbours turn with each other"},
  });
  return kRows;
}

std::span<const EnumRow<CosSinDtype>> enum_rows(CosSinDtype) {
  using enum CosSinDtype;
  static constexpr auto kRows = every_value<EnumRow<CosSinDtype>>({
      {kAuto, "auto", "the type of the model"},
      {kFloat32, "float32", "float32"},
  });
  return kRows;
}

std::span<const EnumRow<LseBase>> enum_rows(LseBase) {
  using enum LseBase;
  static constexpr auto kRows = every_value<EnumRow<LseBase>>({
      {kE, "e", "natural logarithms"},
      {kTwo, "two", "logarithms to base 2"},
  });
  return kRows;
}

bool is_encoder_type(AttentionType type) {
  return type == AttentionType::kEncoder || type == AttentionType::kEncoderOnly;
}

bool has_direct_kv(AttentionType type) {
  return is_encoder_type(type) || type == AttentionType::kMmEncoder;
}

}  // namespace attnbench
