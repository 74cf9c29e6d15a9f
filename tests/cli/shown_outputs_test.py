"""What README and docs show of the program's output: each block is what the real binary prints, or names the
test that sees to it. A block that is new in a document fails this test until it is one of these."""

import json
import re
import subprocess
import sys
import unittest

from documents_test import BLOCK, DOCUMENTS, blocks
from history_test import nightly
from plugins import MINIMAL, NAIVE, PluginTest, library_from_c
from tool import BINARY, ROOT, TIME_LIMIT_S, TINY, TINY_CASE, ToolTest, strict_json, thorough

# By page and beginning: who prints them.
SHOWN = {
    ("README.md", "case "): "documents_test",
    ("README.md", "attnbench: E-FORMAT"): "Messages",
    ("README.md", "$ attnbench calibrate"): "calibrate_test",
    ("calibration.md", "$ attnbench calibrate"): "calibrate_test",
    ("contract.md", "{ "): "no output: the shape of a file, contract_test",
    ("interop.md", "case   backend"): "Tables",
    ("interop.md", "more than 2x the median error"): "checkpoint_test",
    ("interop.md", "kv.dtype"): "Tables",
    ("interop.md", "steps of"): "Tables",
    ("interop.md", "case                "): "Tables",
    ("plugins.md", "MINE  error"): "Plugins",
    ("plugins.md", "--plugin 'libmine.so'"): "Plugins",
    ("report.md", "decode/8q1s1k"): "Tables",
    ("verdicts.md", "E-INTERNAL: out-of-bounds"): "Plugins",
}
# The row of the README's floors for each of these settings.
FLOORS = (
    ("float32", ("attention.dtype=float32",)),
    ("float16", ("attention.dtype=float16",)),
    ("bfloat16", ("attention.dtype=bfloat16",)),
    ("P in e4m3", ("kv_cache.dtype=fp8", "attention.query_dtype=fp8_e4m3",
                   "attention.probability_dtype=fp8_e4m3")),
)  # fmt: skip
MLA = """\
schema: 1
name: latents
attention: {type: mla, num_heads: 16, dtype: DTYPE}
batch: 2q1s100
"""


def shown(page, beginning):
    (text,) = [text for text in blocks(ROOT / page, "") if text.startswith(beginning)]
    return text


def one_line(text):
    """Without the breaks that a page or a terminal puts into a sentence."""
    return " ".join(text.split())


class Registry(unittest.TestCase):
    def test_every_block_of_output_is_printed_by_a_test(self):
        found = set()
        for document in DOCUMENTS:
            for language, text in BLOCK.findall(document.read_text(encoding="utf-8")):
                if language != "":
                    continue
                keys = [key for key in SHOWN if key[0] == document.name and text.startswith(key[1])]
                self.assertTrue(keys, f"{document.name} shows what no test prints:\n{text}")
                found.add(max(keys, key=lambda key: len(key[1])))
        self.assertEqual(found, set(SHOWN), "a row of SHOWN is left over")


class Messages(ToolTest):
    def test_the_messages_of_the_readme_are_the_programs_of_its_scenario_with_a_mistake(self):
        (scenario,) = [text for text in blocks(ROOT / "README.md", "yaml") if text.startswith("schema: 1")]
        lines = scenario.splitlines()
        at = {line.split(":")[0].strip(): i for i, line in enumerate(lines)}
        mistakes = (
            scenario.replace("sliding_window", "sliding_windw"),
            "\n".join([*lines[: at["kv_cache"]], "mla: {v_pad: on}", *lines[at["kv_cache"] :]]),
            scenario.replace("4q1ks3k", "4q1KS3k"),
        )
        for wrong, message in zip(mistakes, shown("README.md", "attnbench: E-").splitlines(), strict=True):
            self.assertNotEqual(wrong, scenario)
            self.write("my.yaml", wrong)
            self.assertIn(message, self.expect(2, "validate", "my.yaml").err.splitlines())

    def limits(self, scenario, *settings):
        """The floors in the words of a result: of the output, and of the LSE where there is one."""
        self.write("limits.yaml", scenario)
        words = [word for setting in settings for word in ("--set", setting)]
        results = self.results("limits.yaml", "--device", "cpu", "--no-timing", *words)
        (result,) = [r for r in results.values() if r["status"] == "passed"][:1]
        found = re.match(r"of each row's size: ([^,]+),", result["error"]["limit"])
        lse = result["lse_error"] and re.match(r"\|a-r\| of each row: ([^,]+),", result["lse_error"]["limit"])
        return float(found[1]), lse and float(lse[1])

    def test_the_floors_of_the_readme_are_those_that_results_are_judged_by(self):
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        table = dict(re.findall(r"(?m)^\| ([^|]+?) \| ([^|]+?) \|$", text.partition("## When is a result")[2]))

        def number(words):
            return float(re.search(r"\d\S*e-\d+", words)[0])

        for row, settings in FLOORS:
            (floor,) = [value for name, value in table.items() if name.startswith(row)]
            fp8 = ("backends=[FLASH_ATTN]",) if row == "P in e4m3" else ()
            self.assertAlmostEqual(self.limits(TINY, *settings, *fp8)[0] / number(floor), 1, 6, row)
        (lse,) = [value for name, value in table.items() if name.startswith("LSE")]
        floors = {name: float(value) for name, value in re.findall(r"([\w ]+): ([\d.e-]+)", lse)}
        self.assertAlmostEqual(self.limits(TINY)[1] / number(lse), 1, 6)
        self.assertAlmostEqual(self.limits(TINY, "attention.dtype=float32")[1] / floors["float32 inputs"], 1, 6)
        self.assertAlmostEqual(self.limits(TINY, "kv_cache.dtype=fp8", "backends=[FLASH_ATTN]")[1] /
                               floors[" fp8 query and keys"], 1, 6)  # fmt: skip
        self.assertEqual(table["MLA"], "5/3 of the output's")
        for dtype, name in (("bfloat16", " MLA in bfloat16"), ("float16", " in float16")):
            output, of_lse = self.limits(MLA.replace("DTYPE", dtype))
            self.assertAlmostEqual(output / (number(table[dtype]) * 5 / 3), 1, 6)
            self.assertAlmostEqual(of_lse / floors[name], 1, 6)


class Tables(ToolTest):
    def head_and_rows(self, text):
        head, *rows = [re.split(r" {2,}", line.strip()) for line in text.strip().splitlines()]
        return head, rows

    @thorough
    def test_the_rows_of_a_cache_type_are_those_that_a_run_prints(self):
        out = self.expect(0, "run", "smoke-mla-extra", "--device", "cpu", "--no-timing", COLUMNS="160").out
        head, rows = self.head_and_rows(shown("docs/interop.md", "kv.dtype"))
        printed = [re.split(r" {2,}", line.strip()) for line in out.splitlines()]
        places = [next(line for line in printed if set(head) <= set(line)).index(name) for name in head]
        found = [[line[i] for i in places] for line in printed if len(line) > max(places)]
        for row in rows:
            self.assertIn(row, found)

    def test_the_steps_of_a_trace_end_with_the_line_that_is_shown(self):
        (self.dir / "t.csv").write_text("timestamp,prompt_tokens,output_tokens\n" +
                                        "".join(f"{i},{20 + i},9\n" for i in range(9)))  # fmt: skip
        self.write("t.yaml", TINY.replace(TINY_CASE, "{trace: t.csv, format: csv, requests: 4, step: 9, "
                                                     "steps: sample 3}"))  # fmt: skip
        out = self.expect(0, "run", "t.yaml", "--backend", "FLASH_ATTN", "--device", "cpu").out
        head, rows = self.head_and_rows(shown("docs/interop.md", "steps of"))
        printed = [re.split(r" {2,}", line.strip()) for line in out.splitlines()]
        self.assertIn(head, printed)
        self.assertEqual(len(printed[printed.index(head) + 1]), len(rows[0]))

    def test_the_page_is_as_large_as_its_document_says(self):
        def page_of(name, text):
            self.write(f"{name}.yaml", text)
            self.expect(0, "run", f"{name}.yaml", "--device", "cpu", "--samples", "20", "--json", f"{name}.json")
            self.expect(0, "report", f"{name}.json", "-o", f"{name}.html")
            results = strict_json((self.dir / f"{name}.json").read_text())["results"]
            return (self.dir / f"{name}.html").stat().st_size, len(results)

        small, few = page_of("few", TINY)
        large, many = page_of("many", TINY + "sweep: {kv_cache.block_size: [16, 32, 48, 64], "
                              "kv_cache.layout: [NHD, HND]}\n")  # fmt: skip
        text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
        base, least, most = map(float, re.search(
            r"one file of ([\d.]+) MiB plus (\d+) to (\d+) KiB per timed result", text).groups())  # fmt: skip
        each = (large - small) / (many - few)
        self.assertTrue(least <= each / 1024 <= most, each)
        self.assertEqual(round((small - few * each) / 2**20, 1), base)

    def test_shares_of_the_speed_of_light_have_the_columns_that_are_shown(self):
        self.write("tiny.yaml", TINY)
        self.expect(0, "run", "tiny.yaml", "--device", "cpu", "--json", "r.json")
        out = self.expect(0, "report", "r.json", "--sol").out
        head, rows = self.head_and_rows(shown("docs/interop.md", "case                "))
        printed = [re.split(r" {2,}", line.strip()) for line in out.splitlines()]
        self.assertIn(head, printed)
        self.assertEqual(len(printed[printed.index(head) + 1]), len(rows[0]))

    @thorough
    def test_results_in_python_have_the_columns_that_are_shown(self):
        program = ("import attnbench; print(attnbench.run({'schema': 1, 'name': 'x', 'attention': "
                   "{'num_heads': 4, 'num_kv_heads': 2, 'head_size': 64}, 'batch': 'q16', 'timing': {'samples': 3, "
                   "'min_time_ms': 1}}))")  # fmt: skip
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=self.dir,
                              env=self.environment(PYTHONPATH=str(ROOT / "python"), ATTNBENCH_PROGRAM=BINARY),
                              timeout=TIME_LIMIT_S)  # fmt: skip
        head, _ = self.head_and_rows(shown("docs/interop.md", "case   backend"))
        self.assertEqual(done.stdout.splitlines()[0].split(), head, done.stderr)

    def test_the_history_is_that_of_26_nights_of_which_the_last_six_are_slower(self):
        lines = [line.replace("decode/q1s1k", "decode/8q1s1k") for line in nightly([100] * 20 + [110] * 6)]
        self.write("runs.jsonl", "".join(line + "\n" for line in lines))
        self.assertIn(shown("docs/report.md", "decode/8q1s1k"), self.expect(0, "history", "runs.jsonl").out)


class Plugins(PluginTest):
    def mine(self, prepare, run):
        """A library whose kernel only does that; `tensors` are kept for it."""
        source = "#include <string.h>\n" + MINIMAL
        source = source.replace("static const char* prepare(", "static const AttnbenchTensors* kept;\n"
                                 "static const char* prepare(", 1)  # fmt: skip
        source = source.replace("  return NULL;\n}\nstatic const char* run", f"  {prepare}\n  return NULL;\n}}\n"
                                "static const char* run", 1)  # fmt: skip
        source = source.replace("(void)stream;", f"(void)stream;\n  {run}", 1)
        source = source.replace("CHANGE", "table.features = ATTNBENCH_CAUSAL | ATTNBENCH_GQA")
        return library_from_c(source, self.dir / "libmine.so")

    def reasons(self, library, batch):
        self.write("mine.yaml", TINY.replace(TINY_CASE, batch))
        done = self.tool("run", "mine.yaml", "--device", "cpu", "--no-timing", "--plugin", library,
                         "--backend", "MINE")  # fmt: skip
        return one_line(done.out + done.err)

    def test_a_write_past_the_output_is_reported_as_shown(self):
        # Behind the last row there are three that are looked at by themselves.
        library = self.mine("kept = tensors;", "memset(kept->output->data, 0, (kept->output->shape[0] + 4) * 512);")
        said = self.reasons(library, TINY_CASE)
        text = one_line(shown("docs/plugins.md", "MINE  error"))
        self.assertIn(text.partition("error ")[2], said)

    def test_a_read_past_the_keys_is_reported_as_shown(self):
        # 139 keys of 2 heads of 64 in bfloat16.
        library = self.mine("kept = tensors;", "const volatile char* key = kept->key->data;\n"
                            "  (void)key[139 * 2 * 64 * 2 + 12];")  # fmt: skip
        said = self.reasons(library, "q39_q1s100")
        self.assertIn(one_line(shown("docs/verdicts.md", "E-INTERNAL: out-of-bounds")), said)

    def test_libraries_are_refused_in_the_words_that_are_shown(self):
        self.write("tiny.yaml", TINY)

        def missing():
            (self.dir / "libmine.so").unlink(missing_ok=True)

        def foreign():
            data = bytearray(NAIVE.read_bytes())
            data[18] = 183
            (self.dir / "libmine.so").write_bytes(data)

        def compiled(source):
            return lambda: library_from_c(source, self.dir / "libmine.so")

        make = (
            missing, foreign,
            compiled("extern int launch_mine(void); int f(void); int f(void) { return launch_mine(); }"),
            compiled("int f(void); int f(void) { return 0; }"),
            compiled(MINIMAL.replace("CHANGE", "table.abi_version = 3")),
            compiled(MINIMAL.replace("CHANGE", "*(volatile int*)0 = 1")),
            compiled(MINIMAL.replace("CHANGE;", "") + "#include <stdlib.h>\n"
                     "__attribute__((constructor)) static void leave(void) { exit(0); }"),
            compiled(MINIMAL.replace("CHANGE;", "") + "#include <unistd.h>\n"
                     "__attribute__((constructor)) static void stay(void) { for (;;) pause(); }"),
        )  # fmt: skip
        limit = ("--hang-limit", "2")  # where the document shows the default

        for write, line in zip(make, shown("docs/plugins.md", "--plugin").splitlines(), strict=True):
            with self.subTest(line):
                write()
                err = self.expect(
                    2, "run", "tiny.yaml", "--device", "cpu", "--plugin", "libmine.so", *limit
                ).err
                shown_text = line.removesuffix(" ...").replace("after 60 s", "after 2 s")
                self.assertIn(shown_text, err.replace(f"{self.dir}/", "./"))


if __name__ == "__main__":
    unittest.main()
