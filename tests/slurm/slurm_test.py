"""The jobs of examples/slurm under a real slurmctld and slurmd, which scripts/slurm_here starts on this
machine: ./scripts/test -L slurm. An array job whose parts are merged, gated and shown together, and a
group of ranks that srun starts.
"""

import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cli"))

from tool import BINARY, TINY, ToolTest, strict_json  # noqa: E402

LIMIT_S = 300
SWEEP = TINY + "sweep: {inputs.seed: [1, 2, 3, 4, 5]}\n"
RANKS = """\
schema: 1
name: ranks
attention: {type: decoder, num_heads: 8, num_kv_heads: 2, head_size: 64, dtype: bfloat16}
batch: [2q1s200_1q5s70, 3q1s80]
dcp: {world_size: 2, transport: mpi}
backends: [FLASH_ATTN]
timing: {samples: 2, min_time_ms: 1}
"""


@unittest.skipUnless(shutil.which("slurmctld") and shutil.which("slurmd"), "no Slurm here")
@unittest.skipUnless(os.geteuid() == 0, "slurmd needs root")
class Slurm(ToolTest):
    def sbatch(self, *arguments, code=0, **variables):
        """Submits one job to a Slurm of its own and waits for it. Returns what its tasks wrote."""
        path = f"{Path(BINARY).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [ROOT / "scripts" / "slurm_here", "sbatch", "--wait", "--cpus-per-task=1", *arguments],
            cwd=self.dir, env=self.environment(PATH=path, **variables), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT_S, check=False)  # fmt: skip
        tasks = "".join(file.read_text() for file in sorted(self.dir.glob("slurm-*.out")))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr + tasks)
        return tasks

    def results_in(self, name):
        return {result["id"]: result
                for result in strict_json((self.dir / name).read_text())["results"]}  # fmt: skip

    def test_an_array_job_runs_a_suite_in_parts_that_are_merged(self):
        self.write("suite.yaml", SWEEP)
        script = ROOT / "examples" / "slurm" / "array.sh"
        self.sbatch("--gres=none", "--array=1-3", script, "suite.yaml", "--device", "cpu")
        parts = [f"part-{i}.json" for i in (1, 2, 3)]
        self.expect(0, "merge", *parts, "-o", "all.json")
        self.expect(0, "run", "suite.yaml", "--device", "cpu", "--no-timing", "--json", "whole.json")
        self.assertEqual(self.results_in("all.json").keys(), self.results_in("whole.json").keys())
        for id, result in self.results_in("all.json").items():
            self.assertIn(result["status"], ("passed", "unsupported"), id)
        # Several files, with a part that is there twice, and with one that is missing.
        self.expect(0, "report", *parts, "-o", "page.html")
        self.expect(0, "gate", "all.json", "all.json")
        outcome = self.expect(2, "merge", parts[0], *parts, "-o", "twice.json")
        self.assertIn("part-1.json", outcome.err)
        outcome = self.expect(2, "merge", *parts[1:], "-o", "gap.json")
        self.assertIn("part 1/3 is missing", outcome.err)

    def test_ranks_are_started_by_srun(self):
        if not (Path(BINARY).parent / "libattnbench_mpi.so").exists():
            self.skipTest("no MPI that attnbench was built with")
        self.write("ranks.yaml", RANKS)
        script = ROOT / "examples" / "slurm" / "ranks.sh"
        self.sbatch("--gpus-per-task=0", "--ntasks=2", script, "ranks.yaml", TRANSPORT="mpi",
                    DEVICE="cpu")  # fmt: skip
        results = self.results_in("ranks.json")
        self.assertEqual(len(results), 2)
        for id, result in results.items():
            self.assertEqual(result["status"], "passed", f"{id}: {result['reasons']}")
            self.assertEqual(len(result["rank_errors"]), 2, id)

    def test_a_rank_that_crashes_under_srun_costs_its_case_alone(self):
        if not (Path(BINARY).parent / "libattnbench_mpi.so").exists():
            self.skipTest("no MPI that attnbench was built with")
        self.write("ranks.yaml", RANKS)
        script = ROOT / "examples" / "slurm" / "ranks.sh"
        self.sbatch("--gpus-per-task=0", "--ntasks=2", script, "ranks.yaml", "--no-timing",
                    "--plant-fault", "crash@1:exchange=3q1s80", code=4, TRANSPORT="mpi",
                    DEVICE="cpu")  # fmt: skip
        results = self.results_in("ranks.json")
        broken = results.pop("ranks/3q1s80/FLASH_ATTN")
        self.assertEqual(broken["status"], "error")
        self.assertIn("rank 1: its process ended: signal 11", broken["reasons"][0])
        (other,) = results.values()
        self.assertEqual(other["status"], "passed")


if __name__ == "__main__":
    unittest.main()
