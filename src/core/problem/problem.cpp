#include "core/problem/problem.h"

#include <algorithm>
#include <cmath>

namespace attnbench {

std::int64_t Problem::num_tokens() const {
  std::int64_t sum = 0;
  for (const Request& request : batch) sum += request.query_len;
  return sum;
}
std::int64_t Problem::num_keys() const {
  std::int64_t sum = 0;
  for (const Request& request : batch) sum += request.seq_len;
  return sum;
}
std::int64_t Problem::max_query_len() const {
  std::int64_t longest = 0;
  for (const Request& request : batch) longest = std::max(longest, request.query_len);
  return longest;
}
std::int64_t Problem::max_seq_len() const {
  std::int64_t longest = 0;
  for (const Request& request : batch) longest = std::max(longest, request.seq_len);
  return longest;
}

const char* to_string(AttentionType value) {
  switch (value) {
    case AttentionType::kDecoder:
      return "decoder";
    case AttentionType::kEncoder:
      return "encoder";
    case AttentionType::kEncoderOnly:
      return "encoder_only";
    case AttentionType::kEncoderDecoder:
      return "encoder_decoder";
    case AttentionType::kMla:
      return "mla";
    case AttentionType::kMmEncoder:
      return "mm_encoder";
    case AttentionType::kOp:
      return "op";
  }
  return "";
}
const char* to_string(QueryDtype value) { return value == QueryDtype::kAuto ? "auto" : "fp8_e4m3"; }
const char* to_string(ProbabilityDtype value) {
  switch (value) {
    case ProbabilityDtype::kAuto:
      return "auto";
    case ProbabilityDtype::kModel:
      return "model";
    case ProbabilityDtype::kFp8E4M3:
      return "fp8_e4m3";
  }
  return "";
}
const char* to_string(EncoderWindow value) {
  return value == EncoderWindow::kSource ? "source" : "symmetric";
}
const char* to_string(AlibiKind value) {
  switch (value) {
    case AlibiKind::kNone:
      return "none";
    case AlibiKind::kLinear:
      return "linear";
    case AlibiKind::kSqrt:
      return "sqrt";
  }
  return "";
}
const char* to_string(TritonPath value) {
  switch (value) {
    case TritonPath::kAuto:
      return "auto";
    case TritonPath::k2d:
      return "2d";
    case TritonPath::k3d:
      return "3d";
  }
  return "";
}
const char* to_string(KvCacheDtype value) {
  switch (value) {
    case KvCacheDtype::kAuto:
      return "auto";
    case KvCacheDtype::kFloat16:
      return "float16";
    case KvCacheDtype::kBFloat16:
      return "bfloat16";
    case KvCacheDtype::kFp8:
      return "fp8";
    case KvCacheDtype::kFp8E4M3:
      return "fp8_e4m3";
    case KvCacheDtype::kFp8E5M2:
      return "fp8_e5m2";
    case KvCacheDtype::kInt8PerTokenHead:
      return "int8_per_token_head";
    case KvCacheDtype::kFp8PerTokenHead:
      return "fp8_per_token_head";
    case KvCacheDtype::kFp8DsMla:
      return "fp8_ds_mla";
  }
  return "";
}
const char* to_string(CacheLayout value) { return value == CacheLayout::kNhd ? "NHD" : "HND"; }
const char* to_string(PthInt8Round value) {
  return value == PthInt8Round::kHalfAway ? "half_away" : "trunc";
}
const char* to_string(CascadeMode value) {
  switch (value) {
    case CascadeMode::kAuto:
      return "auto";
    case CascadeMode::kAlways:
      return "always";
    case CascadeMode::kNever:
      return "never";
  }
  return "";
}
const char* to_string(DcpComm value) {
  switch (value) {
    case DcpComm::kAgRs:
      return "ag_rs";
    case DcpComm::kAgAr:
      return "ag_ar";
    case DcpComm::kA2a:
      return "a2a";
  }
  return "";
}
const char* to_string(DcpTransport value) {
  return value == DcpTransport::kSimulated ? "simulated" : "nccl";
}
const char* to_string(OutputQuantType value) {
  switch (value) {
    case OutputQuantType::kNone:
      return "none";
    case OutputQuantType::kFp8Static:
      return "fp8_static";
    case OutputQuantType::kFp8Group128:
      return "fp8_group128";
    case OutputQuantType::kFp8Group64:
      return "fp8_group64";
    case OutputQuantType::kNvfp4:
      return "nvfp4";
  }
  return "";
}
const char* to_string(Distribution value) {
  switch (value) {
    case Distribution::kNormal:
      return "normal";
    case Distribution::kUniform:
      return "uniform";
    case Distribution::kOutlier:
      return "outlier";
  }
  return "";
}
const char* to_string(L2Mode value) { return value == L2Mode::kCold ? "cold" : "warm"; }
const char* to_string(TimingMode value) {
  return value == TimingMode::kStream ? "stream" : "graph";
}
const char* to_string(TimingOrder value) {
  return value == TimingOrder::kSequential ? "sequential" : "alternate";
}
const char* to_string(Switch value) {
  switch (value) {
    case Switch::kAuto:
      return "auto";
    case Switch::kOn:
      return "on";
    case Switch::kOff:
      return "off";
  }
  return "";
}
const char* to_string(MlaRefForm value) {
  switch (value) {
    case MlaRefForm::kBoth:
      return "both";
    case MlaRefForm::kMha:
      return "mha";
    case MlaRefForm::kMqa:
      return "mqa";
  }
  return "";
}
const char* to_string(MmAttnDtype value) { return value == MmAttnDtype::kAuto ? "auto" : "fp8"; }
const char* to_string(AmaxKind value) { return value == AmaxKind::kAbs ? "abs" : "signed"; }
const char* to_string(OpKind value) {
  switch (value) {
    case OpKind::kReshapeAndCache:
      return "reshape_and_cache";
    case OpKind::kMerge:
      return "merge";
    case OpKind::kGather:
      return "gather";
    case OpKind::kRope:
      return "rope";
    case OpKind::kRopeAndCache:
      return "rope_and_cache";
    case OpKind::kQuantize:
      return "quantize";
    case OpKind::kDcpCorrect:
      return "dcp_correct";
    case OpKind::kOutputQuant:
      return "output_quant";
    case OpKind::kMmQuant:
      return "mm_quant";
  }
  return "";
}
const char* to_string(OpCacheLayout value) {
  switch (value) {
    case OpCacheLayout::kAuto:
      return "auto";
    case OpCacheLayout::kFa:
      return "FA";
    case OpCacheLayout::kIx:
      return "IX";
    case OpCacheLayout::kTr:
      return "TR";
  }
  return "";
}
const char* to_string(RopePairs value) { return value == RopePairs::kNeox ? "neox" : "gptj"; }
const char* to_string(CosSinDtype value) {
  return value == CosSinDtype::kAuto ? "auto" : "float32";
}
const char* to_string(LseBase value) { return value == LseBase::kE ? "e" : "two"; }

bool is_encoder_type(AttentionType type) {
  return type == AttentionType::kEncoder || type == AttentionType::kEncoderOnly;
}

bool has_direct_kv(AttentionType type) {
  return is_encoder_type(type) || type == AttentionType::kMmEncoder;
}

bool is_per_token_head(KvCacheDtype dtype) {
  return dtype == KvCacheDtype::kInt8PerTokenHead || dtype == KvCacheDtype::kFp8PerTokenHead;
}

bool is_quantised(KvCacheDtype dtype) {
  return dtype != KvCacheDtype::kAuto && dtype != KvCacheDtype::kFloat16 &&
         dtype != KvCacheDtype::kBFloat16;
}

Dtype kv_element_dtype(KvCacheDtype dtype, Dtype model_dtype) {
  switch (dtype) {
    case KvCacheDtype::kAuto:
      return model_dtype;
    case KvCacheDtype::kFloat16:
      return Dtype::kF16;
    case KvCacheDtype::kBFloat16:
      return Dtype::kBF16;
    case KvCacheDtype::kFp8:
    case KvCacheDtype::kFp8E4M3:
    case KvCacheDtype::kFp8PerTokenHead:
      return Dtype::kE4M3;
    case KvCacheDtype::kFp8E5M2:
      return Dtype::kE5M2;
    case KvCacheDtype::kInt8PerTokenHead:
      return Dtype::kI8;
    case KvCacheDtype::kFp8DsMla:
      return Dtype::kU8;
  }
  return model_dtype;
}

std::vector<float> resolved_alibi_slopes(const AttentionSpec& attention) {
  std::vector<float> slopes;
  if (attention.alibi_slopes) {
    for (double slope : *attention.alibi_slopes) slopes.push_back(static_cast<float>(slope));
    return slopes;
  }
  const int heads = attention.num_heads;
  int lower = 1;
  while (lower * 2 <= heads) lower *= 2;
  const auto power = [](int index, int count) {
    return static_cast<float>(std::exp2(-8.0 * (index + 1) / count));
  };
  for (int h = 0; h < lower; ++h) slopes.push_back(power(h, lower));
  for (int h = 0; lower + h < heads; ++h) slopes.push_back(power(2 * h, 2 * lower));
  return slopes;
}

}  // namespace attnbench
