// JUnit XML, which CI systems show as tests: results of a run, or verdicts of a gate.
//
// There is no standard, so what is written is what both Jenkins' schema and GitLab take: testsuites
// > testsuite (one a scenario) > testcase (one a result). A test case shows its figures in
// <system-out> because the schema has no properties there, and only a suite counts `skipped`. Only
// what the program calls a failure becomes red: unsupported cases and known failures are skipped.
#pragma once

#include <ostream>
#include <vector>

#include "core/result/result.h"
#include "core/result/verdict.h"

namespace attnbench {

/// incorrect = <failure>, error = <error>, unsupported and skipped = <skipped>; the reasons are the
/// message. `time` is what a case took in all, in seconds.
void write_junit(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

/// A verdict that fails is a <failure> with its rule, a known or a missing one that does not fail
/// <skipped>. `time` is the new median, in seconds, 0 where there is none.
void write_verdict_junit(std::ostream& out, const RunInfo& run, const GateReport& report);

}  // namespace attnbench
