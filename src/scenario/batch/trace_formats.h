// Lengths and arrivals of requests in the formats in which servers and their benchmarks leave them.
//
//   burstgpt      Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
//                 5,ChatGPT,472,18,490,Conversation log
//   vllm_bench    {"input_lens": [472], "output_lens": [18], "start_times": [5.0], ...}
//   sglang_log    {"timestamp": "...", "event": "request.finished", "rid": "...",
//                  "out": {"meta_info": {"prompt_tokens": 472, "completion_tokens": 18, ...}}}
//   vllm_log      DEBUG 09-01 10:00:00 [logger.py:50] Request ID details: ...,
//                 prompt_token_ids: [..]
//                 INFO 09-01 10:00:03 [logger.py:90] Generated response ID: ...,
//                 output_token_ids: [..]
//
// Each parser takes the whole text of a file. What did not succeed, and so has no answer, is left
// out: it held no place in a server for long.
#pragma once

#include <string>
#include <vector>

#include "scenario/batch/trace.h"

namespace attnbench {

/// A CSV with a header, whose columns are found by name in any order: the prompt's length under
/// "Request tokens" (BurstGPT), "ContextTokens", "input_length", "input_tokens", "prompt_tokens",
/// "prompt_len" or "input_len"; that of the answer under "Response tokens", "GeneratedTokens",
/// "output_length", "output_tokens", "completion_tokens", "response_tokens", "output_len" or
/// "generated_tokens"; and, if it is there, the arrival in seconds under "Timestamp", "timestamp",
/// "arrival_time" or "time". Quoted fields may hold commas. Errors: E-FORMAT "<file>:<line>: ...".
std::vector<TraceRequest> parse_csv_trace(const std::string& text, const std::string& file);

/// The detailed result of `vllm bench serve --save-result --save-detailed` (a JSON object) or of
/// `sglang.bench_serving --output-details` (one a line): the lists input_lens and output_lens, and
/// start_times in seconds where they are. Errors: E-FORMAT.
std::vector<TraceRequest> parse_bench_trace(const std::string& text, const std::string& file);

/// SGLang's log with --log-requests --log-requests-format json: lines "request.finished" with
/// out.meta_info.prompt_tokens and completion_tokens, in the order of their arrival by the lines
/// "request.received". Other lines are skipped. Errors: E-FORMAT.
std::vector<TraceRequest> parse_sglang_log(const std::string& text, const std::string& file);

/// vLLM's log with --enable-log-requests --enable-log-outputs and VLLM_LOGGING_LEVEL=DEBUG: the
/// numbers of prompt_token_ids and output_token_ids of each request, in the order of arrival, in
/// seconds since the start of the year. What is streamed counts by its deltas. Other lines are
/// skipped. Errors: E-FORMAT where no request has both, naming what the server has to be told.
std::vector<TraceRequest> parse_vllm_log(const std::string& text, const std::string& file);

/// Seconds of "2024-05-01 10:00:00.25" or "2024-05-01T10:00:00.25" since 1970, or of a number;
/// kNoArrival for anything else, infinities and NaN included.
double parse_timestamp(std::string_view text);

}  // namespace attnbench
