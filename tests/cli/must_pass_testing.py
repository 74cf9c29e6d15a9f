"""For the tests of the shipped suites: the pairs that must pass."""

import re
from pathlib import Path

from tool import SCENARIOS, ToolTest
import gpu_suites

MIN_CHECKED_ROWS = 64
CPU_LIST, CUDA_LIST = gpu_suites.MUST_PASS


def must_pass_ids():
    return gpu_suites.must_pass_ids([CPU_LIST])


def blind_spots_with_a_reason():
    """(pattern of ids, mutants) of tests/blind_to.txt: `PATTERN | mutant, mutant | reason` a line."""
    rows = []
    file = Path(__file__).resolve().parent.parent / "blind_to.txt"
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split(" | ")]
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{file.name}:{number}: expected 'PATTERN | mutants | reason': {line}")
        rows.append((re.compile(parts[0]), {mutant.strip() for mutant in parts[1].split(",")}))
    return rows


def unexplained_blind_spots(result, rows):
    """Mutants that the case of a result cannot see and that no row gives a reason for."""
    known = set().union(*(mutants for pattern, mutants in rows if pattern.fullmatch(result["id"])))
    return [mutant for mutant in result.get("blind_to", []) if mutant not in known]


class MustPassTest(ToolTest):
    time_limit_s = 900  # real sizes, perhaps beside other tests

    def check_must_pass(self, suites, *arguments):
        """Runs the suites; `arguments` may filter. Each listed pair must have passed."""
        results = self.results(*(SCENARIOS / f"{suite}.yaml" for suite in suites),
                               "--no-timing", *arguments)  # fmt: skip
        wanted = [id for id in must_pass_ids() if id.split("/")[0] in suites]
        self.assertTrue(wanted)
        problems = []
        reasons = blind_spots_with_a_reason()
        for id, result in results.items():
            unseen = unexplained_blind_spots(result, reasons)
            if unseen:
                problems.append(f"{id}: cannot see {unseen}, and tests/blind_to.txt gives no reason")
        for id in wanted:
            result = results.get(id)
            if result is None:
                problems.append(f"{id}: not among the results")
            elif result["status"] != "passed":
                problems.append(f"{id}: {result['status']} {result['reasons']}")
            elif result["error"]["checked_rows"] < MIN_CHECKED_ROWS:
                problems.append(f"{id}: checked on {result['error']['checked_rows']} rows")
        self.assertEqual(problems, [])
