"""What quantising costs, on the real binary: shown, warned about, limited by the scenario, gated."""

import csv
import io
import json
import re
import subprocess
import sys
import unittest

from tool import ROOT, TIME_LIMIT_S, TINY, ToolTest, strict_json

SWEEP = TINY + "backends: [FLASH_ATTN]\nsweep: {kv_cache.dtype: [auto, fp8]}\n"
CLIPPED = (
    TINY + "backends: [FLASH_ATTN]\nkv_cache: {dtype: fp8, k_scale: 0.0001, v_scale: 0.0001}\n"
)
MLA = """\
schema: 1
name: latents
attention: {type: mla, num_heads: 4, dtype: bfloat16}
mla: {kv_lora_rank: 128, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32}
kv_cache: {dtype: fp8, k_scale: 0.0001, block_size: 64}
batch: 4q1s100
backends: [MLA]
"""


class Quantization(ToolTest):
    def scales(self, name, key, value):
        layer = {"model.layers.0.self_attn": {"k_scale": key, "v_scale": value, "q_scale": 0.01}}
        return self.write(name, json.dumps(layer))

    def test_every_output_shows_what_fp8_costs_beside_what_costs_nothing(self):
        self.write("s.yaml", SWEEP)
        out = self.expect(
            0, "run", "s.yaml", "--json", "r.json", "--csv", "r.csv", "--markdown", "r.md",
            "--junit", "r.xml", "--prometheus", "r.prom",
        ).out
        results = strict_json((self.dir / "r.json").read_text())["results"]
        exact, fp8 = results
        self.assertIsNone(exact["quantization_error"])
        cost = fp8["quantization_error"]["rms_rel"]
        self.assertGreater(cost, 10 * fp8["error"]["rms_rel"])
        shown = f"{100 * cost:.1f}%"
        rows = [line.split() for line in out.splitlines()]
        title = next(row for row in rows if "quant" in row)
        of_dtype = {row[0]: row[title.index("quant")] for row in rows if row[:1] in (["auto"], ["fp8"])}
        self.assertEqual(of_dtype, {"auto": "-", "fp8": shown}, out)
        table = list(csv.DictReader(io.StringIO((self.dir / "r.csv").read_text(), newline="")))
        self.assertEqual([row["kv_cache.dtype"] for row in table], ["auto", "fp8"])
        self.assertEqual(table[0]["quantization_rms_rel"], "")
        self.assertAlmostEqual(float(table[1]["quantization_rms_rel"]), cost)
        lines = (self.dir / "r.md").read_text().splitlines()
        titles = [cell.strip() for cell in lines[0].split("|")]
        cells = [cell.strip() for cell in lines[3].split("|")]
        self.assertEqual(cells[titles.index("quant")], shown)
        self.assertEqual(cells[titles.index("kv_cache.dtype")], "fp8")
        self.assertIn(shown, self.expect(0, "report", "r.json").out)
        self.assertEqual((self.dir / "r.xml").read_text().count(f"quant: {shown}"), 1)
        gauges = re.findall(r"(?m)^attnbench_quantization_error_ratio{.*dtype=fp8.*} (\S+)$",
                            (self.dir / "r.prom").read_text())  # fmt: skip
        self.assertEqual([float(value) for value in gauges], [cost])
        head, *rows = (re.split(" {2,}", line) for line in self.in_python("r.json").splitlines())
        self.assertEqual(head[4:6], ["err_ratio", "quant"])
        self.assertEqual(rows[1][5], shown)

    def in_python(self, name):
        """How the results of a file look in Python."""
        done = subprocess.run(
            [sys.executable, "-c", f"import attnbench; print(attnbench.load({name!r}))"], cwd=self.dir,
            env=self.environment(PYTHONPATH=str(ROOT / "python")), capture_output=True, text=True,
            timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_two_files_side_by_side_show_what_scales_cost_though_the_errors_shrink(self):
        self.write("s.yaml", CLIPPED)
        fitting = [word for key in "kv" for word in ("--set", f"kv_cache.{key}_scale=0.02")]
        self.write("exact.yaml", TINY + "backends: [FLASH_ATTN]\n")
        for name, words in (("fits", ["s.yaml", *fitting]), ("clips", ["s.yaml"]),
                            ("exact", ["exact.yaml"])):  # fmt: skip
            self.expect(0, "run", *words, "--no-timing", "--json", f"{name}.json")
        rows = self.expect(0, "diff", "fits.json", "clips.json").out.splitlines()
        self.assertRegex(rows[0], r" max_abs +quant +verdict$")
        self.assertRegex(rows[1], r" \d\.\d% -> 9\d\.\d%! +LESS_ACCURATE$")
        self.assertNotIn("quant", self.expect(0, "diff", "exact.json", "exact.json").out)

    def test_scales_that_clip_are_marked_and_warned_about_with_their_shares(self):
        self.write("s.yaml", CLIPPED)
        outcome = self.expect(0, "run", "s.yaml", "--json", "r.json", "--junit", "r.xml",
                              "--summary", "r.md")  # fmt: skip
        self.assertIn("quant! warning: the scales are too small", (self.dir / "r.md").read_text())
        self.assertRegex(self.in_python("r.json"), r"  9\d\.\d%!  ")
        result = strict_json((self.dir / "r.json").read_text())["results"][0]
        cost = result["quantization_error"]
        key, value = (f"{100 * cost[f'saturated_{part}']:.1f}%" for part in ("key", "value"))
        self.assertIn(f"clipped: {key} of the keys, {value} of the values",
                      (self.dir / "r.xml").read_text())  # fmt: skip
        self.assertEqual(result["status"], "passed", "the kernel is right")
        self.assertGreater(cost["rms_rel"], 0.9)
        # Of a normal distribution 4 % lie within 0.0464, which is the largest code's value.
        for name in ("saturated_key", "saturated_value"):
            self.assertAlmostEqual(cost[name], 0.963, 2)
        self.assertNotIn("saturated_query", cost)
        self.assertIn(f"{100 * cost['rms_rel']:.1f}%!", outcome.out)
        self.assertIn("quant! warning: the scales are too small and clip 96.", outcome.out)
        self.assertIn("attnbench calibrate", outcome.out.splitlines()[-1])
        quiet = TINY + "backends: [FLASH_ATTN]\nkv_cache: {dtype: fp8}\n"
        self.write("s.yaml", quiet)
        self.assertNotIn("quant!", self.expect(0, "run", "s.yaml").out)

    def test_a_limit_fails_the_case_that_exceeds_it_and_no_other(self):
        for limit, code in ((0.001, 1), (0.5, 0)):
            self.write("s.yaml", SWEEP + f"validation: {{max_quantization_error: {limit}}}\n")
            outcome = self.expect(code, "run", "s.yaml", "--json", "r.json")
            exact, fp8 = strict_json((self.dir / "r.json").read_text())["results"]
            self.assertEqual(exact["status"], "passed")
            self.assertIsNotNone(exact["timing"])
            self.assertEqual(fp8["problem"]["validation"]["max_quantization_error"], limit)
            self.assertEqual(fp8["quantization_error"]["limit"], f"rms_rel <= {limit}")
            self.assertEqual(fp8["status"], "incorrect" if code else "passed")
            if not code:
                continue
            value = f"{fp8['quantization_error']['rms_rel']:.3g}"
            self.assertEqual(
                fp8["reasons"],
                [f"quantization error {value} (relative RMS against unquantised attention) is above "
                 "validation.max_quantization_error 0.001"],
            )  # fmt: skip
            self.assertIsNone(fp8["timing"])
            self.assertIn("max_quantization_error 0.001", " ".join(outcome.out.split()))

    def test_the_limit_is_checked_resolved_and_overridden_like_every_key(self):
        for wrong in ("0", "-1", ".nan", "much"):
            self.write("s.yaml", TINY + f"validation: {{max_quantization_error: {wrong}}}\n")
            self.assertIn(
                "validation.max_quantization_error", self.expect(2, "validate", "s.yaml").err
            )
        self.write("s.yaml", TINY)
        limit = "validation.max_quantization_error=0.02"
        self.assertIn(
            "max_quantization_error", self.expect(0, "explain", "s.yaml", "--set", limit).out
        )
        self.expect(0, "support", "s.yaml", "--set", limit)
        operation = (
            "schema: 1\nname: w\nattention: {type: op, num_heads: 2, head_size: 64}\n"
            "op: {name: reshape_and_cache, tokens: 8}\nkv_cache: {dtype: fp8}\n"
        )
        self.write("op.yaml", operation)
        self.expect(0, "validate", "op.yaml")
        self.assertIn(
            "validation.max_quantization_error",
            self.expect(2, "support", "op.yaml", "--set", limit).err,
        )

    def test_latents_queries_and_encoders_say_what_their_scales_clip(self):
        self.write("mla.yaml", MLA)
        self.write("query.yaml", TINY + "backends: [FLASH_ATTN]\n"
                   "kv_cache: {dtype: fp8, q_scale: 0.0001}\n")  # fmt: skip
        self.write("output.yaml", TINY + "backends: [TRITON_ATTN]\n"
                   "output_quant: {type: fp8_static, scale: 0.0001}\n")  # fmt: skip
        for name, part in (("mla", "key"), ("query", "query"), ("output", "output")):
            with self.subTest(name):
                (result,) = self.results(f"{name}.yaml", "--no-timing").values()
                share = result["quantization_error"][f"saturated_{part}"]
                self.assertGreater(share, 0.5)
                self.assertLessEqual(share, 1)

    def test_the_gate_holds_what_scales_cost_against_the_baseline(self):
        self.scales("good.json", 0.01, 0.01)
        self.scales("bad.json", 0.0001, 0.0001)
        fixed = "timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}\n"
        for name in ("good", "bad"):
            cache = f"kv_cache: {{dtype: fp8, scale_file: {name}.json}}\nbackends: [FLASH_ATTN]\n"
            self.write(f"{name}.yaml", TINY.replace(fixed, "") + cache)
            self.expect(0, "run", f"{name}.yaml", "--no-timing", "--json", f"{name}-r.json")
        same = self.expect(0, "gate", "good-r.json", "good-r.json")
        self.assertIn("1 SAME", same.out)
        worse = self.expect(1, "gate", "good-r.json", "bad-r.json")
        self.assertIn("LESS_ACCURATE", worse.out)
        self.assertRegex(" ".join(worse.out.split()), r"FLASH_ATTN.* quantization NMSE \S+ -> 0\.9\d+ grew")
        results = json.loads((self.dir / "good-r.json").read_text())
        cost = results["results"][0]["quantization_error"]
        cost.update(rms_rel=2 * cost["rms_rel"], nmse=4 * cost["nmse"])
        self.write("twice.json", json.dumps(results))
        twice = self.expect(1, "gate", "good-r.json", "twice.json")
        self.assertIn("LESS_ACCURATE", twice.out)
        self.assertIn("quantization NMSE", twice.out)
        results["results"][0]["quantization_error"] = None
        self.write("without.json", json.dumps(results))
        less = self.expect(1, "gate", "good-r.json", "without.json")
        self.assertIn("LESS_CHECKED", less.out)
        self.assertIn("quantization_error is missing", " ".join(less.out.split()))

    def test_a_file_that_passed_beyond_its_limit_is_not_believed(self):
        self.write("s.yaml", TINY + "backends: [FLASH_ATTN]\nkv_cache: {dtype: fp8}\n"
                   "validation: {max_quantization_error: 0.5}\n")  # fmt: skip
        self.expect(0, "run", "s.yaml", "--no-timing", "--json", "r.json")
        results = json.loads((self.dir / "r.json").read_text())
        results["results"][0]["problem"]["validation"]["max_quantization_error"] = 1e-6
        self.write("edited.json", json.dumps(results))
        refused = self.expect(2, "gate", "edited.json", "edited.json")
        self.assertIn("above validation.max_quantization_error", refused.err)


if __name__ == "__main__":
    unittest.main()
