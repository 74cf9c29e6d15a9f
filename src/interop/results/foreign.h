// Results of other benchmarks as a ResultFile, for report and gate.
//
// Known by what is in them, not by their names: the JSON of nvbench, of google-benchmark and of
// vLLM's attention_benchmarks, the CSV of the last, and that of cuDNN's SDPA benchmark. Nobody has
// compared these results with a reference, so they are `unverified`: a gate takes them with
// --lenient.
//
// Samples are those of the file where it has them: repetitions of google-benchmark, and the binary
// files that nvbench writes beside its JSON with --jsonbin. Else a summary stands for them: least,
// quartiles, median and largest of nvbench, least, median and largest of vLLM. A mean alone is one
// sample, from which no gate concludes that something got slower.
//
// A name with two slashes or more is taken for an id of ours, so that files which this program
// wrote in these formats can be held against its own. Of other names the tool is the scenario.
//
// Times of theirs are means over other things than ours: google-benchmark's and vLLM's hold
// launches and, unless told otherwise, warm caches. Two files of one tool can be compared; a file
// of theirs beside one of ours says what it says.
//
// The text comes from whoever has read the file, once: it may be a pipe, which has no second time.
//
// Sources: nvbench/json_printer.cu; "Output Formats" of google-benchmark's user guide;
// benchmarks/attention_benchmarks/common.py of vLLM; benchmark/sdpa_benchmark_training of
// cudnn-frontend, whose older files have forward and backward pass in one row.
#pragma once

#include <optional>
#include <string>

#include "core/result/result_file.h"

namespace attnbench {

/// Nothing when the text of a file is in none of these formats. Ids have three parts as ours; a
/// name that repeats gets "#2". Of a timing only samples_us is set, the rest follows from it.
/// `path` is for messages, and for the folder of nvbench's binary files. Errors: E-FORMAT for a
/// file that begins like one of these and is none.
std::optional<ResultFile> parse_foreign_results(const std::string& text, const std::string& path);

}  // namespace attnbench
