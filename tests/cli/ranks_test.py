"""Real ranks: mpirun starts the real binary N times, and a group of CPU ranks gives what simulated
ranks give. Whatever happens to a rank costs its case and nothing else."""

import os
import shutil
import subprocess
import time
import unittest
from pathlib import Path

from tool import BINARY, ToolTest, skip_without, strict_json, thorough

# Seconds of silence after which a rank that hangs is ended; what runs beside it takes milliseconds.
HANG_LIMIT = 4
# For a machine under load: a run takes two seconds.
LIMIT_S = 200

ATTENTION = """\
schema: 1
name: ranks
attention: {type: decoder, num_heads: 8, num_kv_heads: 2, head_size: 64, dtype: bfloat16}
batch: 2q1s200_1q5s70
dcp: {world_size: 2, transport: mpi}
backends: [FLASH_ATTN]
timing: {samples: 2, min_time_ms: 1}
"""
ATTENTION_ID = "ranks/2q1s200_q5s70/FLASH_ATTN"
# Decodes, and prefills whose context is gathered in several chunks.
MLA = """\
schema: 1
name: ranks-mla
attention: {type: mla, num_heads: 8, dtype: bfloat16}
mla: {kv_lora_rank: 64, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32,
      workspace_tokens: 512}
kv_cache: {block_size: 64}
batch: 1q1s70_2q9s700
dcp: {world_size: 2, transport: mpi}
backends: [MLA]
"""


def world_of(*sizes):
    return f"dcp.world_size: [{', '.join(map(str, sizes))}]"


class Ranks(ToolTest):
    @classmethod
    def setUpClass(cls):
        if shutil.which("mpirun") is None:
            skip_without("mpirun")
        if not (Path(BINARY).parent / "libattnbench_mpi.so").exists():
            skip_without("MPI that attnbench was built with")

    def mpirun(self, num_ranks, *arguments, code=0):
        """Runs the tool as several ranks, each with one thread. Returns stdout and stderr."""
        return self.launch(["-n", str(num_ranks), BINARY, "run", *map(str, arguments)], code)

    def launch(self, command, code):
        # Why no timeout: when rank 0 exits with a failure, behind all others, mpirun sleeps for it twice
        # before it looks who is left.
        environment = self.environment(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                       OMPI_MCA_odls_base_sigkill_timeout="0")  # fmt: skip
        completed = subprocess.run(
            ["mpirun", "--oversubscribe", "--bind-to", "none", *command], cwd=self.dir,
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=LIMIT_S)  # fmt: skip
        text = completed.stdout + completed.stderr
        self.assertEqual(completed.returncode, code, text)
        return text

    def ranked(self, num_ranks, *arguments, code=0):
        """Results by id of a run over ranks."""
        self.mpirun(num_ranks, *arguments, "--device", "cpu", "--threads", 1, "--json", "out.json",
                    code=code)  # fmt: skip
        results = strict_json((self.dir / "out.json").read_text())["results"]
        return {result["id"]: result for result in results}

    def expect_as_simulated(self, scenario, num_ranks):
        """Every case passes, each rank's part is judged, and outputs have the same errors."""
        self.write("ranks.yaml", scenario)
        real = self.ranked(num_ranks, "ranks.yaml", "--no-timing")
        simulated = self.results("ranks.yaml", "--set", "dcp.transport=simulated", "--device",
                                 "cpu", "--no-timing")  # fmt: skip
        self.assertEqual(real.keys(), simulated.keys())
        for id, result in real.items():
            with self.subTest(id=id):
                self.assertEqual(result["status"], "passed", result["reasons"])
                self.assertEqual(result["problem"]["dcp"]["transport"], "mpi")
                self.assertEqual(len(result["rank_errors"]),
                                 result["problem"]["dcp"]["world_size"])  # fmt: skip
                for figure in ("error", "lse_error", "rank_errors"):
                    self.assertEqual(result[figure], simulated[id][figure], figure)

    def test_attention_over_two_and_four_ranks_is_that_of_simulated_ranks(self):
        sweep = (f"sweep: {{{world_of(2, 4)}, dcp.comm: [ag_rs, ag_ar, a2a], "
                 "dcp.interleave_size: [1, 16]}\n")  # fmt: skip
        self.expect_as_simulated(ATTENTION + sweep, 4)

    @thorough
    def test_interleave_64_and_float16_too(self):
        self.expect_as_simulated(
            ATTENTION.replace("bfloat16", "float16")
            + "kv_cache: {block_size: 64}\nsweep: {dcp.interleave_size: [1, 64]}\n", 2)  # fmt: skip

    @thorough
    def test_mla_over_ranks_is_that_of_simulated_ranks(self):
        sweep = (f"sweep: {{{world_of(2, 4)}, dcp.interleave_size: [1, 64], "
                 "attention.dtype: [bfloat16, float16]}\n")  # fmt: skip
        self.expect_as_simulated(MLA + sweep, 4)

    @thorough
    def test_alibi_by_global_positions_and_overlap_with_every_exchange(self):
        sweep = (f"sweep: {{{world_of(2, 4)}, dcp.comm: [ag_rs, ag_ar, a2a], "
                 "dcp.overlap: [false, true], dcp.interleave_size: [1, 16]}\n")  # fmt: skip
        self.expect_as_simulated(
            ATTENTION.replace("dtype: bfloat16", "dtype: bfloat16, alibi: linear") + sweep, 4)

    def test_overlap_puts_attention_over_the_new_tokens_first(self):
        self.write("ranks.yaml", ATTENTION.replace("transport: mpi", "transport: mpi, overlap: true"))
        result = self.ranked(2, "ranks.yaml")[ATTENTION_ID]
        self.assertEqual(result["status"], "passed", result["reasons"])
        self.assertEqual([step["name"] for step in result["timing"]["steps"]],
                         ["write_cache", "gather_and_attend_new", "attend_context",
                          "all_gather_lse", "correct", "reduce_scatter", "merge"])  # fmt: skip

    @thorough
    def test_five_to_eight_ranks_are_simulated_ranks_too(self):
        for ranks in (5, 6, 7, 8):
            with self.subTest(ranks=ranks):
                self.expect_as_simulated(
                    ATTENTION.replace("num_heads: 8, num_kv_heads: 2",
                                      f"num_heads: {ranks}, num_kv_heads: 1")
                    .replace("world_size: 2", f"world_size: {ranks}"), ranks)  # fmt: skip

    def test_a_group_of_one_needs_no_launcher(self):
        self.write("ranks.yaml", ATTENTION.replace("world_size: 2", "world_size: 1"))
        (result,) = self.ranked(1, "ranks.yaml", "--no-timing").values()
        self.assertEqual(result["status"], "passed", result["reasons"])

    @thorough
    def test_three_ranks_share_heads_that_three_divides(self):
        self.expect_as_simulated(
            ATTENTION.replace("num_heads: 8, num_kv_heads: 2", "num_heads: 6, num_kv_heads: 2")
            .replace("world_size: 2", "world_size: 3"), 3)  # fmt: skip

    def test_a_timed_run_has_every_step_of_the_group(self):
        self.write("ranks.yaml", ATTENTION)
        result = self.ranked(2, "ranks.yaml")[ATTENTION_ID]
        self.assertEqual(result["status"], "passed", result["reasons"])
        self.assertEqual([step["name"] for step in result["timing"]["steps"]],
                         ["write_cache", "all_gather_query", "attend_context",
                          "all_gather_lse", "correct", "reduce_scatter", "attend_new",
                          "merge"])  # fmt: skip
        received = {step["name"]: step["bytes"] for step in result["timing"]["steps"]}
        # One other rank: half of eight heads of 64 bfloat16 for 7 tokens, and their LSEs and
        # outputs in float32.
        self.assertEqual(received["all_gather_query"], 7 * 4 * 64 * 2)
        self.assertEqual(received["all_gather_lse"], 7 * 8 * 4)
        self.assertEqual(received["reduce_scatter"], 7 * 4 * 64 * 4)
        self.assertTrue(result["repro"].startswith("mpirun -n 2 attnbench run "), result["repro"])

    def test_only_rank_0_reports(self):
        self.write("ranks.yaml", ATTENTION)
        text = self.mpirun(3, "ranks.yaml", "--no-timing", "--threads", 1, "--device", "cpu")
        self.assertEqual(text.count("1 passed"), 1, text)

    def test_too_few_ranks_are_a_refusal_in_numbers(self):
        self.write("ranks.yaml", ATTENTION.replace("world_size: 2", "world_size: 4"))
        (result,) = self.ranked(2, "ranks.yaml", code=3).values()
        self.assertEqual(result["status"], "unsupported")
        self.assertEqual(result["reasons"],
                         ["DCP over mpi: dcp.world_size is 4, there are 2 ranks"])  # fmt: skip

    def test_one_process_has_no_ranks(self):
        self.write("ranks.yaml", ATTENTION)
        for launched in (True, False):
            with self.subTest(launched=launched):
                if launched:
                    (result,) = self.ranked(1, "ranks.yaml", code=3).values()
                else:
                    (result,) = self.results("ranks.yaml", "--device", "cpu", code=3).values()
                self.assertEqual(result["reasons"], ["DCP over mpi: attnbench was not started by "
                                                     "mpirun or srun"])  # fmt: skip

    def expect_one_error(self, fault, *words):
        """The first of two cases is an error of these words, the second passes, nobody is left."""
        self.write("ranks.yaml", ATTENTION.replace("2q1s200_1q5s70", "[3q1s80, 2q1s99]"))
        results = self.ranked(2, "ranks.yaml", "--no-timing", "--hang-limit", HANG_LIMIT,
                              "--plant-fault", f"{fault}=3q1s80", code=4)  # fmt: skip
        broken = results["ranks/3q1s80/FLASH_ATTN"]
        self.assertEqual(broken["status"], "error")
        for word in words:
            self.assertIn(word, broken["reasons"][0])
        self.assertEqual(results["ranks/2q1s99/FLASH_ATTN"]["status"], "passed")
        self.expect_nobody_left()

    def expect_nobody_left(self):
        """No process of this test's folder outlives mpirun by more than moments."""
        for _ in range(100):
            left = [pid for pid in os.listdir("/proc") if pid.isdigit() and self.is_ours(pid)]
            if not left:
                return
            time.sleep(0.1)
        self.fail(f"processes are left: {left}")

    def is_ours(self, pid):
        try:
            return os.readlink(f"/proc/{pid}/cwd") == str(self.dir)
        except OSError:
            return False

    @thorough
    def test_a_rank_that_exits_ends_its_case(self):
        self.expect_one_error("exit@1", "rank 1: its process ended: exit status 3",
                              "phase 'planted fault'")  # fmt: skip

    @thorough
    def test_a_crash_in_any_phase_ends_its_case_and_names_the_phase(self):
        for phase in ("prepare", "write_cache", "all_gather_query", "attend_context",
                      "all_gather_lse", "correct", "reduce_scatter", "attend_new", "merge",
                      "read"):  # fmt: skip
            with self.subTest(phase=phase):
                self.expect_one_error(f"crash@1:{phase}", "rank 1: its process ended: signal 11",
                                      f"phase '{phase}'")  # fmt: skip

    @thorough
    def test_a_hang_and_an_exit_in_an_exchange_end_their_case(self):
        self.expect_one_error("hang@1:reduce_scatter", f"rank 1: no progress for {HANG_LIMIT} s",
                              "phase 'reduce_scatter'")  # fmt: skip
        self.expect_one_error("exit@1:all_gather_lse", "rank 1: its process ended: exit status 3",
                              "phase 'all_gather_lse'")  # fmt: skip

    def test_a_phase_that_there_is_not_is_named_beside_those_that_there_are(self):
        self.write("ranks.yaml", ATTENTION)
        result = self.ranked(2, "ranks.yaml", "--no-timing", "--plant-fault", "crash@1:nap=.",
                             code=4)[ATTENTION_ID]  # fmt: skip
        self.assertIn("no phase 'nap'; the case has prepare, read, write_cache",
                      result["reasons"][0])  # fmt: skip

    def test_a_rank_that_crashes_ends_its_case(self):
        self.expect_one_error("crash@1", "rank 1: its process ended: signal 11",
                              "phase 'planted fault'")  # fmt: skip

    def test_a_rank_that_hangs_ends_its_case(self):
        self.expect_one_error("hang@1", f"rank 1: no progress for {HANG_LIMIT} s",
                              "phase 'planted fault'")  # fmt: skip

    def test_a_crash_of_rank_0_ends_its_case(self):
        self.expect_one_error("crash@0", "rank 0: ", "in phase 'run': signal 11")

    @thorough
    def test_a_hang_of_rank_0_ends_its_case(self):
        self.expect_one_error("hang@0", "rank 0: time limit", "in phase 'run'")

    def test_a_rank_with_another_scenario_is_found_before_anything_runs(self):
        self.write("ranks.yaml", ATTENTION)
        self.write("other.yaml", ATTENTION.replace("head_size: 64", "head_size: 128"))
        options = ["--no-timing", "--threads", "1", "--device", "cpu"]
        text = self.launch(
            ["-n", "1", BINARY, "run", "ranks.yaml", *options, "--json", "out.json", ":",
             "-n", "1", BINARY, "run", "other.yaml", *options], 4)  # fmt: skip
        (result,) = strict_json((self.dir / "out.json").read_text())["results"]
        self.assertEqual(result["status"], "error", text)
        self.assertIn("rank 1: it was started with another scenario or other options than rank 0",
                      result["reasons"][0])  # fmt: skip

    def test_a_rank_whose_device_is_not_there_says_so(self):
        self.write("ranks.yaml", ATTENTION)
        options = ["--no-timing", "--threads", "1", "--device"]
        self.launch(
            ["-n", "1", BINARY, "run", "ranks.yaml", *options, "cpu", "--json", "out.json", ":",
             "-n", "1", BINARY, "run", "ranks.yaml", *options, "cuda:999"], 4)  # fmt: skip
        (result,) = strict_json((self.dir / "out.json").read_text())["results"]
        self.assertEqual(result["status"], "error")
        self.assertRegex(result["reasons"][0], "rank 1: no CUDA device")

    def test_ranks_over_nccl_need_a_process_that_can_end_them(self):
        self.write("ranks.yaml", ATTENTION.replace("transport: mpi", "transport: nccl"))
        run = self.expect(2, "run", "ranks.yaml", "--device", "cpu", "--in-process")
        self.assertIn("--in-process: expected cases without ranks over NCCL", run.err)
        self.assertIn(f"found {ATTENTION_ID}", run.err)

    def test_a_rank_that_cannot_read_its_scenario_is_named(self):
        self.write("ranks.yaml", ATTENTION)
        options = ["--no-timing", "--threads", "1", "--device", "cpu"]
        self.launch(["-n", "1", BINARY, "run", "ranks.yaml", *options, "--json", "out.json", ":",
                     "-n", "1", BINARY, "run", "nowhere.yaml", *options], 4)  # fmt: skip
        (result,) = strict_json((self.dir / "out.json").read_text())["results"]
        self.assertIn("rank 1: attnbench ended there: exit status 2", result["reasons"][0])


if __name__ == "__main__":
    unittest.main()
