"""For the tests of the shipped suites: the pairs that must pass."""

from tool import SCENARIOS, ToolTest
import gpu_suites

MIN_CHECKED_ROWS = 64
CPU_LIST, CUDA_LIST = gpu_suites.MUST_PASS


def must_pass_ids():
    return gpu_suites.must_pass_ids([CPU_LIST])


class MustPassTest(ToolTest):
    def check_must_pass(self, suites, *arguments):
        """Runs the suites; `arguments` may filter. Each listed pair must have passed."""
        results = self.results(*(SCENARIOS / f"{suite}.yaml" for suite in suites),
                               "--no-timing", *arguments)  # fmt: skip
        wanted = [id for id in must_pass_ids() if id.split("/")[0] in suites]
        self.assertTrue(wanted)
        problems = []
        for id in wanted:
            result = results.get(id)
            if result is None:
                problems.append(f"{id}: not among the results")
            elif result["status"] != "passed":
                problems.append(f"{id}: {result['status']} {result['reasons']}")
            elif result["error"]["checked_rows"] < MIN_CHECKED_ROWS:
                problems.append(f"{id}: checked on {result['error']['checked_rows']} rows")
        self.assertEqual(problems, [])
