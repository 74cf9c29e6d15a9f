// JUnit XML, which CI systems show as tests: results of a run, or verdicts of a gate.
//
// There is no standard, so what is written is what both Jenkins' schema and GitLab take: testsuites
// > testsuite (one a scenario) > testcase (one a result). A test case shows its figures in
// <system-out> because the schema has no properties there, and only a suite counts `skipped`. Only
// what the program calls a failure becomes red: unsupported cases and known failures are skipped.
//
//   <testsuites name="attnbench" tests="2" failures="0" errors="0" time="0.001078474">
//     <testsuite name="demo" tests="2" ... skipped="0" timestamp="..." hostname="...">
//       <testcase classname="demo" name="4q1s1k/FLASH_ATTN" time="0.000843709">
//         <system-out>status: passed&#10;max_abs: 4.8e-04&#10;...</system-out>
//       </testcase>
//
// A suite holds all results of its scenario even where they are not neighbours in the file (a run
// in rounds, a resumed one), since viewers show two suites of one name as two. The name of a test
// case is the rest of the result's id, so a red line can be pasted behind --filter.
//
// Texts are escaped by xml_escape(); line breaks inside of attributes are written as &#10;, because
// a parser would turn them into spaces.
#pragma once

#include <ostream>
#include <vector>

#include "core/result/result.h"
#include "core/result/verdict.h"

namespace attnbench {

/// incorrect = <failure>, error = <error>, unsupported and skipped = <skipped>; the reasons are the
/// message, and all of them, with the command that repeats the case, the text. `time` is what a
/// case took in all, in seconds.
void write_junit(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

/// A verdict that fails is a <failure> with its rule; a known, a missing or an ambiguous one that
/// does not fail is <skipped>, so that every viewer shows it; what got faster or stayed the same
/// passes. Each has its rule and both medians in <system-out>. `time` is the new median, in
/// seconds, 0 where there is none.
void write_verdict_junit(std::ostream& out, const RunInfo& run, const GateReport& report);

}  // namespace attnbench
