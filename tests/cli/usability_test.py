"""What users ran into: keys that nothing reads, messages that help, commands that say what they do."""

import json
import re
import signal
import subprocess
import unittest

from tool import BINARY, SCENARIOS, TIME_LIMIT_S, TINY, TINY_CASE, ToolTest, strict_json

OP = """\
schema: 1
name: one
attention: {type: op, num_heads: 4, num_kv_heads: 2, head_size: 64%s}
op: {name: %s, tokens: 16}
"""


class UnreadKeys(ToolTest):
    def refused(self, text, *messages, options=()):
        """The scenario's only errors are these, each behind the file's name."""
        self.write("s.yaml", text)
        command = ["support", "s.yaml", *options] if options else ["validate", "s.yaml"]
        lines = self.expect(2, *command).err.splitlines()
        self.assertEqual(len(lines), len(messages), lines)
        for line, message in zip(lines, messages):
            self.assertTrue(line.startswith("attnbench: E-CONFIG: "), line)
            self.assertIn(message, line)

    def accepted(self, text, *options):
        self.write("s.yaml", text)
        self.expect(0, "support", "s.yaml", *options)

    def test_a_section_of_another_type_names_the_type_that_reads_it(self):
        of_type = "found attention.type decoder"
        for line, key, needs in (
            ("mla: {kv_lora_rank: 512}", "mla.kv_lora_rank", "attention.type mla"),
            ("mla: {sparse: {valid: 0.5}}", "mla.sparse.valid",
             "attention.type mla and mla.sparse_topk"),
            ("op: {raw: true}", "op.raw", "op.name gather"),
            ("mm_encoder: {tp_size: 1}", "mm_encoder.tp_size", "attention.type mm_encoder"),
        ):
            with self.subTest(key):
                self.refused(TINY + line + "\n", f"s.yaml:6: {key}: read only with {needs}")
                self.refused(TINY + line + "\n", of_type)

    def test_a_path_that_nothing_reads_is_refused_whether_or_not_there_is_a_file(self):
        for section, key in (
            ("mm_encoder", "fp8_scale_path"), ("mm_encoder", "fp8_scale_save_path"),
            ("kv_cache", "value_scale_file"), ("kv_cache", "scale_file"),
        ):  # fmt: skip
            with self.subTest(key):
                self.write("s.yaml", TINY + f"{section}: {{{key}: nowhere.json}}\n")
                error = self.expect(2, "validate", "s.yaml").err
                self.assertIn(f"E-CONFIG: s.yaml:6: {section}.{key}: ", error)

    def test_scales_of_a_16_bit_cache_are_refused_with_the_types_that_have_them(self):
        for scale in ("k_scale", "v_scale", "q_scale"):
            self.refused(
                TINY + f"kv_cache: {{{scale}: 0.5}}\n",
                f"s.yaml:6: kv_cache.{scale}: read only with a KV cache of ",
            )
        self.refused(TINY + "kv_cache: {k_scale: 0.5}\n",
                     "fp8, fp8_e4m3, fp8_e5m2 or nvfp4; found attention.type decoder, kv_cache.dtype auto")  # fmt: skip
        self.accepted(TINY + "kv_cache: {dtype: fp8, k_scale: 0.5}\n")

    def test_an_operation_tells_all_keys_that_it_does_not_read(self):
        text = OP % (", scale: 1.0, causal: true, logits_soft_cap: 30", "reshape_and_cache")
        text += "kv_cache: {q_scale: 0.5}\ncascade: {mode: never}\n"
        keys = ("attention.scale", "attention.causal", "attention.logits_soft_cap",
                "kv_cache.q_scale", "cascade.mode")  # fmt: skip
        self.refused(text, *(f"{key}: read only with " for key in keys))
        self.refused(text, *["found op.name reshape_and_cache"] * 5)

    def test_options_and_sweeps_are_keys_too(self):
        self.refused(TINY, "--set mla.v_pad=on: mla.v_pad: read only with attention.type mla",
                     options=("--set", "mla.v_pad=on"))  # fmt: skip
        self.refused(
            TINY + "sweep:\n  mla.q_pad_num_heads: [8, 16]\n",
            "s.yaml:7: mla.q_pad_num_heads: read only with attention.type mla; found "
            "attention.type decoder in the first of 2 cases",
        )

    def test_an_option_may_leave_a_key_of_the_file_unread(self):
        text = TINY.replace("timing: {", "timing: {order: alternate, rounds: 4, ")
        self.write("s.yaml", text)
        for command in ("run", "explain", "support", "validate"):
            more = () if command == "validate" else ("--device", "cpu")
            outcome = self.expect(0, command, "s.yaml", "--set", "timing.order=sequential", *more)
            self.assertIn("notice: s.yaml:5: timing.rounds: left out, since with the options of the command "
                          "line nothing reads it (read only with timing.order alternate; ", outcome.err)  # fmt: skip
        self.refused(text.replace("alternate", "sequential"),
                     "s.yaml:5: timing.rounds: read only with timing.order alternate")  # fmt: skip

    def test_one_case_of_a_sweep_that_reads_a_key_is_enough(self):
        self.accepted(TINY + "kv_cache: {k_scale: 0.5}\nsweep: {kv_cache.dtype: [auto, fp8]}\n")
        self.accepted(TINY + "mla: {sparse_topk: null, v_pad: auto}\n")
        self.accepted(OP % ("", "dcp_correct") + "dcp: {comm: a2a}\n"
                      "sweep: {dcp.world_size: [1, 2]}\n")  # fmt: skip

    def test_a_model_may_describe_more_than_a_case_reads(self):
        self.write("model.yaml", TINY.replace("head_size: 64,", "head_size: 64, sliding_window: 9,")
                   + "kv_cache: {block_size: 32}\n")  # fmt: skip
        child = "schema: 1\nname: one\nextends: model.yaml\nattention: {type: op}\n"
        self.accepted(child + "op: {name: merge}\n")
        self.write("model.yaml", TINY + "triton: {path: 2d}\n")
        self.refused(child + "op: {name: merge}\n", "model.yaml:6: triton.path: read only with ")

    def test_every_shipped_file_is_valid(self):
        files = sorted(SCENARIOS.glob("*.yaml")) + sorted(SCENARIOS.glob("models/*.yaml"))
        self.assertGreater(len(files), 100)
        self.expect(0, "validate", *files)


class Messages(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", TINY)

    def error(self, *arguments, code=2):
        return self.expect(code, *arguments).err

    def test_a_value_in_the_words_of_other_tools_gets_the_nearest_of_ours(self):
        for key, found, meant in (
            ("attention.dtype", "bf16", "bfloat16"), ("attention.dtype", "half", "float16"),
            ("attention.dtype", "bfloat17", "bfloat16"), ("kv_cache.dtype", "e4m3", "fp8_e4m3"),
            ("kv_cache.layout", "nhd", "NHD"), ("timing.l2", "COLD", "cold"),
        ):  # fmt: skip
            error = self.error("run", "tiny.yaml", "--set", f"{key}={found}")
            self.assertIn(f"found '{found}'; did you mean '{meant}'?", error)
            self.assertIn(f"{key}: expected one of ", error)

    def test_a_number_beyond_its_limit_is_told_the_limit(self):
        error = self.error("run", "tiny.yaml", "--set", "kv_cache.num_blocks=999999999999")
        self.assertIn("expected an integer >= 0 and <= 2147483647, or auto, found 999999999999",
                      error)  # fmt: skip

    def test_options_name_their_numbers(self):
        for option, value, expected in (
            ("--seed", "-1", "a whole number >= 0"), ("--seed", "nan", "a whole number >= 0"),
            ("--samples", "0", "a whole number from 1 to 1000000000"),
            ("--samples", "2.5", "a whole number from 1 to 1000000000"),
        ):  # fmt: skip
            error = self.error("run", "tiny.yaml", option, value)
            self.assertIn(f"{option}: expected {expected}, found {value}; see", error)
        error = self.error("run", "tiny.yaml", "--seed", "9" * 30)
        self.assertIn(f"--seed: expected at most {2**63 - 1}, found {'9' * 30}; see", error)

    def test_words_too_many_are_named(self):
        for words, message in (
            (("run", "-V"), "unknown option '-V'; see 'attnbench run --help'"),
            (("run", "tiny.yaml", "--jsn", "x"), "unknown option '--jsn'; did you mean '--json'?"),
            (("man", "run"), "unexpected argument 'run'; see 'attnbench man --help'"),
        ):  # fmt: skip
            self.assertIn(f"attnbench: usage: {message}", self.error(*words))

    def test_a_file_that_is_no_scenario_gets_one_line(self):
        for name, content, words in (
            ("foreign.yaml", "a: 1\nb: 2\nc: 3\nd: 4\n",
             "expected a scenario (name, attention, batch, kv_cache, ...), found 4 other keys: "
             "'a', 'b', 'c', ..."),
            ("results.json", json.dumps({"schema_version": 1, "results": [], "tool": {}}),
             "expected a scenario, found a result file, which 'attnbench report' reads"),
            ("program", b"\x7fELF\x02" * 100, "expected a text file in UTF-8, found byte 0x7f"),
        ):  # fmt: skip
            self.write(name, content)
            error = self.error("run", name)
            self.assertEqual(error.count("\n"), 1, error)
            self.assertIn(f"E-FORMAT: {name}:1: {words}", error)

    def test_files_that_are_no_yaml_are_refused_without_the_words_of_a_parser(self):
        for text, words in (
            (TINY + "sweep: {kv_cache.dtype: [auto, fp8}\n", "s.yaml:6: expected YAML or JSON, found: an unmatched ']' or '}'"),
            (TINY + "kv_cache:\n\tdtype: fp8\n", "s.yaml:7: expected YAML or JSON, found: a tab in the indentation"),
            (TINY.replace("batch: ", " batch: "), "s.yaml:4: expected YAML or JSON, found: a "),
        ):  # fmt: skip
            self.write("s.yaml", text)
            error = self.error("validate", "s.yaml")
            self.assertIn(words, error)
            self.assertNotRegex(error, "illegal|not found|end of")

    def test_an_option_without_its_value_says_what_it_takes(self):
        self.assertIn("--samples: expected N, found none; see 'attnbench run --help'",
                      self.error("run", "tiny.yaml", "--samples"))  # fmt: skip

    def test_the_valid_keys_are_listed_once(self):
        self.write("bad.yaml", TINY + "zzzzzzzz: 1\nyyyyyyyy: 2\n")
        error = self.error("validate", "bad.yaml")
        self.assertEqual(error.count("valid keys: "), 1)
        self.assertEqual(error.count("unknown key"), 2)

    def test_a_folder_that_cannot_be_made_is_named(self):
        error = self.error("run", "tiny.yaml", "--no-timing", "--save-tensors", "/proc/foo")
        self.assertIn("E-IO: --save-tensors /proc/foo: cannot make the folder: ", error)

    def test_an_empty_path_is_no_path(self):
        self.write("tiny.yaml", TINY)
        for option in ("--json", "--save-tensors"):
            outcome = self.expect(2, "run", "tiny.yaml", "--no-timing", option, "")
            self.assertIn(f"usage: {option}: expected a path, found ''", outcome.err)
            self.assertEqual(outcome.out, "")

    def test_scale_files_are_refused_without_the_words_of_a_parser(self):
        for content, words in (('{"a": 1', "not JSON: line 1, column 8: the file ends too early"),
                               # A literal before it, which is read as a string of more characters.
                               ('{"a": NaN, "b": -Infinity, x}',
                                "not JSON: line 1, column 28: unexpected 'x'"),
                               (b"\x00\x01", "not JSON: line 1, column 1: unexpected byte 0x00"),
                               ('{"a": {"q": 1e999}}', "number overflow parsing '1e999'")):  # fmt: skip
            self.write("scales.json", content)
            error = self.error("scales", "scales.json")
            self.assertIn(words, error)
            for leaked in ("json.exception", "syntax error", "parse_error"):
                self.assertNotIn(leaked, error)

    def test_wrong_values_come_with_the_nearest_that_is_right(self):
        for setting, words in (("kv_cache.block_size=17", "Found 17; the nearest is 16"),
                               ("kv_cache.block_size=31", "Found 31; the nearest is 32"),
                               ("timing.l2=hot", "found 'hot'; did you mean 'warm'?")):  # fmt: skip
            self.assertIn(words, self.error("run", "tiny.yaml", "--set", setting))

    def test_a_refused_format_names_its_value_and_what_is_taken(self):
        settings = ("--set", "attention.head_size=20", "--set", "attention.dtype=float32")
        out = self.expect(0, "support", "tiny.yaml", *settings, "--backend", "FLASH_ATTN",
                          "--backend", "REFERENCE").out  # fmt: skip
        self.assertIn("head_size not supported (found 20; expected a multiple of 8, at most 256)",
                      out)  # fmt: skip
        self.assertIn("dtype not supported (found float32; expected ", out)
        out = self.expect(3, "support", "tiny.yaml", "--set", "kv_cache.block_size=144",
                          "--set", "kv_cache.int8_level=0", "--set", "attention.head_size=20",
                          "--backend", "FLASH_ATTN_IX").out  # fmt: skip
        self.assertIn("head_size not supported (found 20; ", out)

    def test_cases_that_are_refused_for_the_same_reasons_stand_together(self):
        self.write("many.yaml", TINY.replace("bfloat16", "float32")
                   + "sweep: {attention.logits_soft_cap: [0, 10, 20, 30]}\n")  # fmt: skip
        out = self.expect(0, "support", "many.yaml").out
        self.assertEqual(out.count("unsupported: "), 1)
        self.assertIn("\n  FLASH_ATTN, FLASH_ATTN_IX, all 4 cases\n", out)
        self.assertEqual(len(strict_json(self.expect(0, "support", "many.yaml", "--json", "-").out)),
                         12)  # fmt: skip


    def test_a_reason_stands_once_with_the_backends_and_cases_that_it_refuses(self):
        self.write("mix.yaml", TINY + "sweep: {attention.dtype: [bfloat16, float32], "
                   "kv_cache.dtype: [auto, fp8, int8_per_token_head]}\n")  # fmt: skip
        for width in ("80", "200"):
            out = self.expect(0, "support", "mix.yaml", COLUMNS=width).out
            self.assertEqual(len(re.findall("(?m)^unsupported: ", out)), 3)
            # No name is broken in two.
            _, *told = " ".join(out.split()).split(" unsupported: ")
            self.assertTrue(told[-1].startswith("dtype not supported (found float32; "), told)
            self.assertIn(") FLASH_ATTN, FLASH_ATTN_IX, 3 cases: ", told[-1])
            for reason in told[:-1]:
                self.assertRegex(reason, r"^kv_cache_dtype not supported .*\) FLASH_ATTN(_IX)?, 2 cases: "
                                         r"\S*bfloat16,\s?kv\S+int8_per_token_head; \S+float32,")  # fmt: skip


class Commands(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", TINY)

    def test_a_filter_that_matches_nothing_is_told(self):
        for command in ("run", "support", "explain", "compile", "invariance", "compose"):
            listed = ["--list"] if command == "compile" else []
            outcome = self.expect(3, command, "tiny.yaml", "--filter", "zzz", *listed)
            self.assertIn("attnbench: no result id matches --filter 'zzz'", outcome.err)
        self.expect(0, "run", "tiny.yaml", "--no-timing", "--json", "r.json")
        for command in (["report"], ["diff", "r.json"], ["gate", "r.json"],
                        ["gate", "--agreement", "r.json"]):  # fmt: skip
            outcome = self.expect(3, *command, "r.json", "--filter", "zzz", "--backend", "MLA")
            self.assertEqual(
                outcome.err, "attnbench: no result matches --filter 'zzz' --backend MLA\n")  # fmt: skip

    def test_a_file_that_is_no_result_file_is_told_what_writes_one(self):
        for command in (["report"], ["diff", "tiny.yaml"], ["gate", "tiny.yaml"]):
            self.assertIn("tiny.yaml: not JSON, expected a file that 'run --json' wrote",
                          self.expect(2, *command, "tiny.yaml").err)  # fmt: skip

    def test_a_trace_set_that_is_not_there_is_an_error_beside_scenarios_too(self):
        for scenarios in ((), ("tiny.yaml",)):
            error = self.expect(2, "run", *scenarios, "--no-timing", "--trace-set", "nowhere").err
            self.assertIn("E-IO: --trace-set nowhere: expected a folder, found none", error)

    def test_a_run_that_would_do_nothing_is_refused(self):
        error = self.expect(2, "run", "tiny.yaml", "--no-timing", "--no-validation").err
        self.assertIn("--no-timing with --no-validation: expected at most one of them", error)

    def test_a_backend_that_cannot_run_here_says_why(self):
        out = self.expect(3, "run", "tiny.yaml", "--backend", "CUDNN", "--device", "cpu").out
        self.assertIn("unsupported: CUDNN needs a CUDA device", out)

    def test_explain_shows_what_the_case_reads(self):
        out = self.expect(0, "explain", "tiny.yaml", "--device", "cpu").out
        problem = strict_json(out[out.index("{") : out.index("\n}\n") + 2])
        for section in ("mla", "mm_encoder", "op"):
            self.assertNotIn(section, problem)
        self.assertNotIn("k_scale", problem["kv_cache"])
        self.assertIn("block_size", problem["kv_cache"])
        whole = self.expect(0, "explain", "tiny.yaml", "--device", "cpu", "-v").out
        self.assertIn("mla", strict_json(whole[whole.index("{") : whole.index("\n}\n") + 2]))

    def test_explain_shows_the_problem_in_a_few_full_lines(self):
        for width in (60, 100):
            out = self.expect(0, "explain", "tiny.yaml", "--backend", "FLASH_ATTN", "--device", "cpu",
                              COLUMNS=str(width)).out  # fmt: skip
            problem = out[out.index("{") : out.index("\n}\n") + 2].splitlines()
            self.assertLessEqual(max(map(len, problem)), width)
            self.assertLess(len(problem), 5000 // width)
            whole = self.expect(0, "explain", "tiny.yaml", "--set", "batch=4q1s512", "--device", "cpu",
                                COLUMNS=str(width)).out  # fmt: skip
            self.assertIn("hopper_tiles", whole)
            self.assertEqual([line for line in whole.splitlines() if len(line) > width], [])
            self.assertEqual(strict_json("\n".join(problem))["attention"]["head_size"], 64)

    def test_explain_shows_the_defaults_of_what_is_read_and_no_query_type_that_backends_decide(self):
        short = self.explained("tiny.yaml")
        self.assertFalse({"mla", "mm_encoder", "op"} & set(short))
        self.assertEqual((short["kv_cache"]["dtype"], short["attention"]["sliding_window"]), ("auto", None))
        self.assertNotIn("query_dtype", short["attention"])
        self.assertEqual(self.explained("tiny.yaml", "-v")["attention"]["query_dtype"], "auto")
        self.write("prefix.yaml", TINY.replace(TINY_CASE, "4q1s100"))
        prefixed = self.explained("prefix.yaml", "--set", "cascade.common_prefix_len=16")
        self.assertEqual(prefixed["cascade"]["common_prefix_len"], 16)

    def test_what_explain_shows_is_a_scenario_of_the_same_case(self):
        fp8 = ("--set", "kv_cache.dtype=fp8", "--set", "kv_cache.k_scale=0.02")
        for settings in ((), fp8):
            short = self.explained("tiny.yaml", *settings)
            self.write("again.yaml", json.dumps(short))
            self.assertEqual(self.explained("again.yaml"), short)
            self.assertEqual(self.explained("again.yaml", "-v"), self.explained("tiny.yaml", "-v", *settings))

    def explained(self, *words):
        out = self.expect(0, "explain", *words, "--device", "cpu").out
        return strict_json(out[out.index("{") : out.index("\n}\n") + 2])

    def test_explain_says_once_what_is_true_of_several_backends(self):
        out = self.expect(0, "explain", "tiny.yaml", "--device", "cpu").out
        every = "FLASH_ATTN, FLASH_ATTN_IX, TRITON_ATTN"
        self.assertRegex(out, rf"(?m)^backends {every}\n(  .+\n)+backends FLASH_ATTN, FLASH_ATTN_IX\n")
        for fact, places in (("flops", 1), ("num_decodes", 1), ("path", 3), ("cache shape", 3)):
            self.assertEqual(len(re.findall(f"(?m)^  {fact} ", out)), places, fact)
        whole = self.expect(0, "explain", "tiny.yaml", "--device", "cpu", "-v").out
        self.assertEqual(len(re.findall("(?m)^  flops ", whole)), 3)
        facts, all_facts = (text.split("\n}\n", 1)[1] for text in (out, whole))
        self.assertLess(3 * facts.count("\n"), 2 * all_facts.count("\n"))
        none = self.expect(0, "explain", "tiny.yaml", "--device", "cpu", "--set", "attention.dtype=float32",
                           "--backend", "FLASH_ATTN", "--backend", "FLASH_ATTN_IX").out  # fmt: skip
        self.assertEqual(len(re.findall("(?m)^  unsupported: dtype", none)), 1, none)
        self.assertIn("backends FLASH_ATTN, FLASH_ATTN_IX\n  unsupported: ", none)

    def test_explain_shows_the_query_that_auto_stands_for(self):
        fp8 = ("--set", "kv_cache.dtype=fp8", "--device", "cpu")
        for backend, query in (("FLASH_ATTN", "fp8_e4m3 by q_scale"), ("TRITON_ATTN", "bfloat16")):
            out = self.expect(0, "explain", "tiny.yaml", "--backend", backend, *fp8).out
            self.assertRegex(out, f"(?m)^  query +{query}$")

    def test_an_interrupted_run_says_how_to_go_on_and_lists_no_skipped_case(self):
        self.write("many.yaml", TINY + f"sweep: {{inputs.seed: {list(range(400))}}}\n")
        process = subprocess.Popen(
            [BINARY, "run", "many.yaml", "-v", "--json", "out.json"], cwd=self.dir,
            env=self.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)  # fmt: skip
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIME_LIMIT_S)
        self.assertEqual(process.returncode, 4)
        self.assertRegex(err, r"attnbench: interrupted: \d+ of 1200 results skipped; continue with "
                              "the same command and --resume out.json")  # fmt: skip
        self.assertNotIn("skipped", out)

    def test_calibrate_says_what_it_wrote(self):
        self.write("fp8.yaml", TINY + "kv_cache: {dtype: fp8}\n")
        out = self.expect(0, "calibrate", "fp8.yaml", "--output", "s.json").out
        self.assertTrue(out.endswith("wrote s.json: scales of 1 layer, format kv-cache\n"), out)

    def test_a_table_of_two_files_says_how_to_compare_them(self):
        for name in ("a.json", "b.json"):
            self.expect(0, "run", "tiny.yaml", "--no-timing", "--json", name)
        self.assertIn("to compare them: attnbench diff a.json b.json",
                      self.expect(0, "report", "a.json", "b.json").err)  # fmt: skip
        self.assertEqual(self.expect(0, "report", "a.json").err, "")

    def test_texts_are_plain(self):
        helps = {name: self.expect(0, name, "--help").out for name in ("run", "gate", "calibrate")}
        self.assertIn("in addition to the built-in ones", helps["run"])
        self.assertIn("unverified results are accepted", helps["gate"])
        self.assertIn("Required layers", helps["calibrate"])
        self.assertIn(f"tiny/{TINY_CASE}", self.expect(0, "explain", "tiny.yaml").out)


if __name__ == "__main__":
    unittest.main()
