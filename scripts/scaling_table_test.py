"""The scaling table: what it makes of results with one rank and with several, and its scenarios."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "scaling_table.py"


def result(ranks, total_us, steps, status="unverified"):
    return {
        "id": f"scaling/{ranks}", "case": f"16q1s128k,dcp.world_size={ranks}", "status": status,
        "reasons": [] if steps else ["E-INTERNAL: rank 1: gone"],
        "problem": {"dcp": {"world_size": ranks},
                    "attention": {"type": "decoder", "num_kv_heads": 8, "head_size": 128,
                                  "v_head_size": 128},
                    "batch": [{"query_len": 1, "seq_len": 1001, "count": 16}]},
        "timing": {"total_us": total_us,
                   "steps": [{"name": name, "median_us": us, "bytes": moved}
                             for name, us, moved in steps]} if steps else None,
    }  # fmt: skip


# 16,000 tokens of 4 KiB; two messages of 400 KB and 600 KB in 25 us; the model says (1000 - 25) / 2
# + 25 + 17 + 2 * 10 + 5 us.
ONE = result(1, 1000.0, [("write_cache", 5, 100), ("attend", 990, 100)])
TWO = result(2, 525.0, [("all_gather_query", 10, 400e3), ("attend_context", 480, 0),
                        ("correct", 3, 0), ("reduce_scatter", 15, 600e3)])  # fmt: skip


class ScalingTable(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)

    def run_script(self, *words):
        done = subprocess.run([sys.executable, "-B", SCRIPT, *map(str, words)], text=True,
                              capture_output=True, check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def table(self, *results, options=()):
        path = self.dir / "results.json"
        path.write_text(json.dumps({"results": list(results)}))
        return self.run_script("table", path, *options).splitlines()

    def test_more_ranks_are_told_against_one(self):
        one, two = (line.split() for line in self.table(ONE, TWO)[1:])
        self.assertEqual(one, ["16q1s128k", "1", "1000.0", "66"])
        self.assertEqual(two, ["16q1s128k", "2", "525.0", "1.90", "95", "%", "68", "25.0", "40.0",
                               "554.5", "+6", "%"])  # fmt: skip

    def test_a_gather_beside_the_new_tokens_is_a_message_of_the_model(self):
        two = result(2, 500.0, [("gather_and_attend_new", 20, 0), ("attend_context", 460, 0),
                                ("all_to_all", 15, 600e3)])  # fmt: skip
        two["problem"]["attention"]["num_heads"] = 64
        row = self.table(ONE, two)[2].split()
        # 16 tokens of 32 heads of 128 elements, 131,072 bytes, and 600 KB at 200 GB/s.
        self.assertEqual(row[-3], "553.2")

    def test_without_one_rank_there_is_nothing_to_tell_against(self):
        (two,) = self.table(TWO)[1:]
        self.assertEqual(two.split(), ["16q1s128k", "2", "525.0", "68", "25.0", "40.0"])

    def test_what_was_not_timed_is_named_with_its_reason(self):
        lines = self.table(ONE, result(2, 0, [], "error"))
        self.assertEqual(lines[-1], "scaling/2: error E-INTERNAL: rank 1: gone")

    def test_markdown_has_a_row_for_each_result(self):
        lines = self.table(ONE, TWO, options=["--markdown"])
        self.assertEqual(len(lines), 4)
        self.assertEqual({line.count("|") for line in lines}, {11})

    def test_scenarios_have_every_batch_and_all_ranks(self):
        self.run_script("scenarios", self.dir, "--ranks", "1, 2, 4", "--batches",
                        "64q1s8k 16q1s128k", "--mla-batches", "4q1s8k")  # fmt: skip
        files = sorted(path.name for path in self.dir.glob("*.yaml"))
        self.assertEqual(files, ["gqa-0-64q1s8k.yaml", "gqa-1-16q1s128k.yaml",
                                 "mla-0-4q1s8k.yaml"])  # fmt: skip
        text = (self.dir / "mla-0-4q1s8k.yaml").read_text()
        self.assertIn("type: mla", text)
        self.assertIn("dcp.world_size: [1, 2, 4]", text)


if __name__ == "__main__":
    unittest.main()
