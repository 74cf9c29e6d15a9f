"""FlashInfer-Trace in and out, through the real binary: definitions and workloads become scenarios,
solutions are judged, and the records of the results are those that flashinfer-bench's models accept.

The torch of the solutions is that of tests/python/fake_torch.
"""

import json
import subprocess
import unittest

import numpy as np
from pythons import NumpyTest
from tool import BINARY, ROOT, TIME_LIMIT_S, strict_json, thorough
from trace_sets import (
    HEADS,
    KV_HEADS,
    MLA,
    MLA_PREFILL,
    PREFILL,
    RAGGED,
    RETURNS,
    SIZE,
    SPARSE,
    TraceFolder,
    decode,
    decode_definition,
    definition,
    flashinfer_bench,
    mla_definition,
    plain,
    prefill,
    ragged_definition,
    safetensors,
    solution,
    sparse_definition,
    workload,
)

from opinion import safetensors_file

QUICK = ("--device", "cpu", "--set", "timing.samples=3", "--set", "timing.min_time_ms=1",
         "--set", "timing.timeout_s=2", "--set", "timing.l2=warm")  # fmt: skip


class TraceTest(NumpyTest):
    def setUp(self):
        super().setUp()
        self.set = TraceFolder(self.dir / "set")

    def environment(self, **changes):
        return super().environment(XDG_CACHE_HOME=str(self.dir / "cache"), **changes)

    def imported(self, of, *workloads, code=0):
        """Texts of the scenarios by uuid."""
        paths = self.set.add(of, workloads)
        outcome = self.expect(code, "import", *paths[: 2 if workloads else 1], "-o", "out")
        found = {path.rsplit(".", 2)[1]: (self.dir / path).read_text()
                 for path in outcome.out.split()}  # fmt: skip
        return found, outcome.err

    def run_set(self, *arguments, code=0):
        self.expect(code, "run", "--trace-set", "set", *QUICK, "--json", "r.json", *arguments)
        results = strict_json((self.dir / "r.json").read_text())["results"]
        return {result["backend"].rsplit(":", 1)[-1]: result for result in results}


def decode_blob(lengths, page_size, seed=1, spare=3):
    """Pages in an order that is not that of their numbers, with pages that nobody uses between them."""
    random = np.random.default_rng(seed)
    pages = [-(-length // page_size) for length in lengths]
    total = sum(pages) + spare
    offsets = np.cumsum([0, *pages]).astype(np.int32)
    indices = random.permutation(total)[: sum(pages)].astype(np.int32)
    draw = lambda *shape: random.standard_normal(shape).astype(np.float32)
    return {"q": draw(len(lengths), HEADS, SIZE), "k_cache": draw(total, page_size, KV_HEADS, SIZE),
            "v_cache": draw(total, page_size, KV_HEADS, SIZE), "kv_indptr": offsets,
            "kv_indices": indices}  # fmt: skip


class Import(TraceTest):
    def test_lengths_come_from_the_blob_of_plan_inputs_with_unknown_types(self):
        of, blob = decode_definition(16), decode_blob([32, 16, 16, 64], 16)
        self.set.write("blob/w/a.safetensors", safetensors(blob))
        line = workload(of, "AB-1", {"batch_size": 4, "num_pages": 11, "len_indptr": 5, "num_kv_indices": 8},
                        0.2, "blob/w/a.safetensors", ("kv_indptr", "kv_indices"))  # fmt: skip
        found, notices = self.imported(of, line)
        self.assertIn("scale: 0.2", found["ab-1"])
        self.assertIn("block_size: 16", found["ab-1"])
        self.assertIn(
            "batch:\n  - {count: 1, query_len: 1, seq_len: 32}\n  - {count: 2, query_len: 1, seq_len: 16}\n"
            "  - {count: 1, query_len: 1, seq_len: 64}\n", found["ab-1"])  # fmt: skip
        self.assertEqual(notices, "")

    def test_keys_are_gathered_in_the_order_of_kv_indices(self):
        of, blob = decode_definition(1), decode_blob([5, 3], 1)
        self.set.write("blob/a.safetensors", safetensors(blob))
        line = workload(of, "u", {"batch_size": 2, "num_pages": 11, "len_indptr": 3, "num_kv_indices": 8},
                        0.125, "blob/a.safetensors", blob)  # fmt: skip
        found, _ = self.imported(of, line)
        self.assertIn("block_size: 16", found["u"])
        name = f"{of['name']}.u"
        tensors = safetensors_file.read(self.dir / "out" / f"{name}.safetensors")[0]
        expected = blob["k_cache"][blob["kv_indices"], 0]
        np.testing.assert_array_equal(tensors["key"].raw, expected)
        self.assertFalse(np.array_equal(expected, blob["k_cache"][np.sort(blob["kv_indices"]), 0]))
        results = self.results(f"out/{name}.yaml", "--no-timing", "--backend", "TRITON_ATTN", "--device",
                               "cpu")  # fmt: skip
        self.assertEqual([result["status"] for result in results.values()], ["passed"])

    def test_partly_filled_pages_and_lengths_that_are_given_count(self):
        of = decode_definition(16)
        of["inputs"]["kv_last_page_len"] = {"shape": ["batch_size"], "dtype": "int32"}
        blob = {"kv_indptr": np.array([0, 2, 3], np.int32), "kv_indices": np.array([4, 1, 0], np.int32),
                "kv_last_page_len": np.array([3, 16], np.int32)}  # fmt: skip
        self.set.write("a.safetensors", safetensors(blob))
        line = workload(of, "u", {"batch_size": 2, "num_pages": 5, "len_indptr": 3, "num_kv_indices": 3},
                        None, "a.safetensors", blob)  # fmt: skip
        found, _ = self.imported(of, line)
        self.assertIn("seq_len: 19}\n  - {count: 1, query_len: 1, seq_len: 16}", found["u"])
        self.assertNotIn("scale", found["u"])

    def test_random_indptrs_are_lengths_that_are_as_equal_as_they_can_be_and_it_says_so(self):
        of = decode_definition(16)
        line = workload(of, "u", {"batch_size": 3, "num_pages": 9, "len_indptr": 4, "num_kv_indices": 7})
        found, notices = self.imported(of, line)
        self.assertIn("{count: 1, query_len: 1, seq_len: 48}\n  - {count: 2, query_len: 1, seq_len: 32}",
                      found["u"])  # fmt: skip
        self.assertIn("workload u: no values of kv_indptr", notices)

    def test_a_definition_alone_gives_one_scenario(self):
        found, _ = self.imported(ragged_definition())
        self.assertIn("{count: 2, query_len: 256, seq_len: 256}", found["default"])

    def test_mla_before_absorption_has_values_of_their_own_size(self):
        of = ragged_definition("mla_ragged", 96, 64)
        blob = {name: np.array([0, 4, 9], np.int32) for name in ("qo_indptr", "kv_indptr")}
        self.set.write("a.safetensors", safetensors(blob))
        line = workload(of, "u", {"len_indptr": 3, "total_q": 9, "total_kv": 9}, 0.1, "a.safetensors", blob)
        found, _ = self.imported(of, line)
        self.assertIn("num_kv_heads: 4, head_size: 96, v_head_size: 64", found["u"])
        self.assertIn("{count: 1, query_len: 4, seq_len: 4}\n  - {count: 1, query_len: 5, seq_len: 5}",
                      found["u"])  # fmt: skip

    def test_the_scale_of_mla_is_that_before_absorption(self):
        found, _ = self.imported(mla_definition())
        self.assertIn(f"scale: {(128 + 16) ** -0.5}", found["default"])

    def test_problem_files_of_sol_execbench_have_computed_axes_and_plain_workloads(self):
        of = decode_definition(16)
        del of["op_type"]
        of["axes"]["num_kv_indices"] = {"type": "expr", "expression": "batch_size * (pages_each + 1) // 2"}
        of["axes"]["pages_each"] = {"type": "var"}
        of["op_type"] = "unsaid"
        line = workload(of, "u", {"batch_size": 2, "num_pages": 9, "len_indptr": 3, "pages_each": 3})
        found, _ = self.imported(of, line["workload"])
        self.assertIn("{count: 2, query_len: 1, seq_len: 32}", found["u"])

    def test_a_workload_that_is_no_case_is_left_out_and_the_rest_stays(self):
        of = decode_definition(16)
        axes = {"batch_size": 2, "num_pages": 5, "len_indptr": 3, "num_kv_indices": 2}
        blob = {"kv_indptr": np.array([0, 0, 2], np.int32)}
        self.set.write("a.safetensors", safetensors(blob))
        lines = [workload(of, "empty", axes, None, "a.safetensors", blob), workload(of, "good", axes)]
        found, notices = self.imported(of, *lines)
        self.assertEqual(list(found), ["good"])
        self.assertIn("workload empty: request 0 has 1 new tokens and 0 keys", notices)

    def test_damaged_workloads_are_left_out_and_the_rest_stays(self):
        of = decode_definition(16)
        axes = {"batch_size": 2, "num_pages": 5, "len_indptr": 3, "num_kv_indices": 2}
        self.set.write("a.safetensors", safetensors({"kv_indptr": np.array([0, 1, 2], np.float32)}))
        lines = [workload(of, "huge", {**axes, "batch_size": 10**13}),
                 workload(of, "gone", axes, None, "gone.safetensors", ["kv_indptr"]),
                 workload(of, "floats", axes, None, "a.safetensors", ["kv_indptr"]),
                 workload(of, "good", axes)]  # fmt: skip
        found, notices = self.imported(of, *lines)
        self.assertEqual(list(found), ["good"])
        self.assertIn("workload huge: q: expected 0 to 1000000 rows, found 10000000000000", notices)
        self.assertIn("left out: workload gone: ", notices)
        self.assertIn("workload floats: kv_indptr: expected int32 or int64, found float32", notices)

    def test_offsets_beyond_the_keys_and_lists_of_another_shape_are_refused(self):
        ragged, sparse = ragged_definition(), sparse_definition()
        keys = np.zeros((2, HEADS, SIZE), np.float32)
        blob = {name: keys for name in "qkv"} | {"qo_indptr": np.array([0, 2], np.int64)}
        line = workload(ragged, "u", {"len_indptr": 2, "total_q": 2, "total_kv": 2}, 0.1, "a.safetensors",
                        [*blob, "kv_indptr"])  # fmt: skip
        for end, words in ((10**12, "kv_indptr: expected 0 to 2147483647 as a value"),
                           (5, "kv_indptr: request 0 has keys 0 to 5, and there are 2")):  # fmt: skip
            self.set.write("a.safetensors", safetensors({**blob, "kv_indptr": np.array([0, end])}))
            self.assertIn(words, self.imported(ragged, line, code=2)[1])
        self.set.write("a.safetensors", safetensors({"sparse_indices": np.zeros(4, np.int32)}))
        line = workload(sparse, "u", {"num_tokens": 4, "num_pages": 3}, 0.1, "a.safetensors",
                        ["sparse_indices"])  # fmt: skip
        self.assertIn("sparse_indices: expected [4, 128] values, found 4",
                      self.imported(sparse, line, code=2)[1])  # fmt: skip

    def test_a_cache_with_heads_before_tokens_is_laid_out_so_and_one_that_contradicts_the_query_refused(self):
        of = decode_definition(16)
        shape = of["inputs"]["k_cache"]["shape"]
        self.assertEqual(of["axes"]["num_kv_heads"]["value"], KV_HEADS)
        for name in ("k_cache", "v_cache"):
            of["inputs"][name]["shape"] = [shape[0], shape[2], shape[1], shape[3]]
        self.assertIn("{block_size: 16, layout: HND}", self.imported(of)[0]["default"])
        of["axes"]["num_kv_heads"]["value"], of["axes"]["page_size"]["value"] = 16, KV_HEADS
        self.assertIn(
            f"k_cache: expected a number of KV heads that divides the {HEADS} query heads, found 16 in axis 1",
            self.imported(of, code=2)[1])  # fmt: skip

    def test_workloads_whose_names_differ_in_letters_that_files_lack_get_files_of_their_own(self):
        of = decode_definition(16)
        axes = {"batch_size": 2, "num_pages": 5, "len_indptr": 3, "num_kv_indices": 2}
        found, _ = self.imported(of, *(workload(of, uuid, axes) for uuid in ("A", "a", "x/y", "x-y")))
        self.assertEqual(len(found), 4)
        self.assertLessEqual({"a", "x-y"}, set(found))
        records = [strict_json(path.read_text()) for path in (self.dir / "out").glob("*.workload.json")]
        self.assertEqual({record["workload"]["uuid"] for record in records}, {"A", "a", "x/y", "x-y"})
        for name, text in found.items():
            self.assertIn(f"name: {of['name']}.{name}\n", text)

    def test_a_name_is_a_name_whatever_is_in_it(self):
        of = decode_definition(16)
        of["name"] = 'gqa "x"\nbackends: [NONE]'
        found, _ = self.imported(of)
        self.assertNotIn("\nbackends", found["default"])
        (path,) = (self.dir / "out").glob("*.workload.json")
        self.assertEqual(strict_json(path.read_text())["definition"], of["name"])

    def test_an_axis_beyond_whole_numbers_is_no_axis(self):
        of = decode_definition(16)
        of["axes"]["num_kv_indices"] = {"type": "expr", "expression": "10**300"}
        line = workload(of, "u", {"batch_size": 2, "num_pages": 9, "len_indptr": 3})
        self.assertIn("expected an expression of axes, found '10**300'",
                      self.imported(of, line, code=2)[1])  # fmt: skip

    def test_what_cannot_be_read_is_named(self):
        of = decode_definition(16)
        cases = [
            (definition("norm", "rmsnorm", {"n": 4}, {"x": plain(["n"])}, {"y": ["n"]}),
             "norm is no attention that can be imported"),
            (decode_definition(24), "page_size: expected a divisor or a multiple of 16, found 24"),
            ({**of, "axes": {**of["axes"], "page_size": {"type": "const", "value": "x"}}},
             'axes.page_size: value: expected an integer >= 0, found "x"'),
            ({**of, "inputs": 3}, "inputs: expected an object, found 3"),
        ]  # fmt: skip
        for one, words in cases:
            self.assertIn(words, self.imported(one, code=2)[1])
        missing = workload(of, "u", {"batch_size": 1}, None, "gone.safetensors", ["kv_indptr"])
        self.assertIn("gone.safetensors", self.imported(of, missing, code=2)[1])


class Judge(TraceTest):
    def add_decode(self, *solutions, page_size=16):
        of = decode_definition(page_size)
        line = workload(of, "one", {"batch_size": 3, "num_pages": 9, "len_indptr": 4, "num_kv_indices": 7})
        line["workload"]["inputs"]["sm_scale"] = {"type": "scalar", "value": 0.2}
        self.set.add(of, [line], [solution(name, of, text, **spec) for name, text, spec in solutions])
        return of, line

    def test_right_solutions_pass_and_wrong_ones_do_not(self):
        self.add_decode(
            ("writes-output", decode(), {}),
            ("returns", RETURNS, {"destination_passing_style": False}),
            ("natural_lse", decode(", base=2.718281828459045"), {}),
            ("sorts_pages", decode(", order=lambda pages: pages[:1].repeat(len(pages))"), {}),
            ("raises", decode().replace("    paged", "    raise ValueError('no')\n    paged"), {}),
            ("broken", "def run(:\n", {}),
        )  # fmt: skip
        results = self.run_set("--trace-json", "t.jsonl", code=1)
        status = {name: result["status"] for name, result in results.items()}
        self.assertEqual(status, {"FLASH_ATTN": "unsupported", "FLASH_ATTN_IX": "unsupported", "TRITON_ATTN": "passed", "writes_output": "passed", "returns": "passed",
                                  "natural_lse": "incorrect", "sorts_pages": "incorrect",
                                  "raises": "error", "broken": "error"})  # fmt: skip
        self.assertIn("LSE is natural, declared base 2", " ".join(results["natural_lse"]["reasons"]))
        self.check_records((self.dir / "t.jsonl").read_text())

    def check_records(self, text):
        records = {record["solution"]: record for record in map(strict_json, text.splitlines())}
        evaluations = {name: record["evaluation"] for name, record in records.items()}
        self.assertEqual({name: one["status"] for name, one in evaluations.items()},
                         {"TRITON_ATTN": "PASSED", "writes-output": "PASSED", "returns": "PASSED",
                          "natural_lse": "INCORRECT_NUMERICAL", "sorts_pages": "INCORRECT_NUMERICAL",
                          "raises": "RUNTIME_ERROR", "broken": "COMPILE_ERROR"})  # fmt: skip
        self.assertEqual({record["workload"]["uuid"] for record in records.values()}, {"one"})
        right = evaluations["writes-output"]
        self.assertGreater(right["performance"]["latency_ms"], 0)
        self.assertIn("reference_latency_ms is that of TRITON_ATTN", right["log"])
        self.assertLess(right["correctness"]["max_absolute_error"], 1e-4)
        self.assertIsNone(evaluations["natural_lse"]["performance"])
        self.assertIsNone(evaluations["raises"]["correctness"])

    def test_pages_of_one_token_are_parts_of_blocks(self):
        self.add_decode(("right", decode(), {}), page_size=1)
        self.assertEqual(self.run_set()["right"]["status"], "passed")

    def test_ragged_mla_and_sparse_solutions_are_judged(self):
        ragged, mla, sparse = ragged_definition(), mla_definition(), sparse_definition()
        self.set.add(ragged, [workload(ragged, "r", {"len_indptr": 3, "total_q": 9, "total_kv": 40}, 0.2)],
                     [solution("ragged", ragged, RAGGED)])  # fmt: skip
        axes = {"batch_size": 3, "num_pages": 9, "len_indptr": 4, "num_kv_indices": 7}
        self.set.add(mla, [workload(mla, "m", axes)], [solution("mla", mla, MLA)])
        self.set.add(sparse, [workload(sparse, "s", {"num_tokens": 3, "num_pages": 3}, 0.1)],
                     [solution("sparse", sparse, SPARSE)])  # fmt: skip
        norm = definition("norm", "rmsnorm", {"n": 4}, {"x": plain(["n"])}, {"y": ["n"]})
        norm["axes"]["pad"] = {"type": "const"}  # as FlashInfer dumps a size that nobody reads
        self.set.add(norm)
        results = self.run_set()
        for name in ("ragged", "mla", "sparse", "MLA"):
            self.assertEqual((results[name]["status"], results[name]["reasons"]), ("passed", []), name)
        self.assertEqual(len({result["scenario"] for result in results.values()}), 3)

    def test_solutions_of_prompts_are_judged_and_one_that_sees_later_tokens_is_not_right(self):
        paged, mla = prefill(decode_definition(16)), prefill(mla_definition())
        ragged = ragged_definition("mla_ragged", 96, 64)
        axes = {"total_q": 11, "num_pages": 9, "len_indptr": 4, "num_kv_indices": 7}
        later = PREFILL + "\nimport attend\nattend.MASKED = False\n"
        self.set.add(paged, [workload(paged, "p", axes, 0.2)],
                     [solution("paged", paged, PREFILL), solution("later", paged, later)])  # fmt: skip
        self.set.add(mla, [workload(mla, "m", axes, 0.1)],
                     [solution("latents", mla, MLA_PREFILL),
                      solution("keys_as_values", mla, MLA_PREFILL.replace("c, sm_scale", "c * 2, sm_scale"))])  # fmt: skip
        self.set.add(ragged, [workload(ragged, "r", {"len_indptr": 3, "total_q": 9, "total_kv": 40}, 0.2)],
                     [solution("expanded", ragged, RAGGED),
                      solution("natural", ragged, RAGGED.replace("sm_scale)", "sm_scale, 2.718281828459045)"))])  # fmt: skip
        results = self.run_set(code=1)
        for name, definition in (("paged", paged), ("latents", mla), ("expanded", ragged)):
            self.assertEqual((results[name]["status"], results[name]["reasons"]), ("passed", []), name)
            self.assertIn(definition["name"].lower(), results[name]["scenario"])
            self.assertGreater(max(row["query_len"] for row in results[name]["problem"]["batch"]), 1)
            self.assertLess(results[name]["lse_error"]["max_abs"], 1e-2)
        for name in ("later", "keys_as_values", "natural"):
            self.assertEqual(results[name]["status"], "incorrect", name)
        self.assertIn("LSE is natural, declared base 2", " ".join(results["natural"]["reasons"]))

    @thorough
    def test_a_changed_solution_is_measured_again_and_a_case_can_be_repeated(self):
        of, _ = self.add_decode(("right", decode(), {}))
        first = self.run_set()["right"]
        self.assertIn("--trace-set set", first["repro"])
        self.set.add(of, [], [])
        changed = solution("right", of, decode() + "# changed\n")
        self.set.write(f"solutions/tests/gqa_paged/{of['name']}/right.json", json.dumps(changed))
        scenario = first["repro"].split()[2]
        again = self.results(scenario, "--trace-set", "set", *QUICK, "--filter", "right")
        (second,) = again.values()
        self.assertEqual(second["status"], "passed")
        self.assertNotEqual(second["plugin"]["sha256"], first["plugin"]["sha256"])

    def test_a_folder_that_is_no_set_and_a_run_of_nothing_are_refused(self):
        (self.dir / "set").mkdir()
        self.assertIn("expected a trace set", self.expect(2, "run", "--trace-set", "set").err)
        self.assertIn("SCENARIO is required", self.expect(2, "run", "--device", "cpu").err)

    def test_results_of_plain_scenarios_have_records_too(self):
        self.write("tiny.yaml", "schema: 1\nname: tiny\nattention: {type: decoder, num_heads: 4, head_size: "
                   "64, dtype: float32}\nbatch: q3_2q1s9\n")  # fmt: skip
        self.expect(0, "run", "tiny.yaml", "--device", "cpu", "--no-timing", "--trace-json", "t.jsonl")
        records = list(map(strict_json, (self.dir / "t.jsonl").read_text().splitlines()))
        self.assertEqual({record["definition"] for record in records}, {"tiny"})
        self.assertEqual(records[0]["workload"]["axes"], {"batch_size": 3, "total_q": 5, "total_kv": 21})


class Documentation(TraceTest):
    @thorough
    def test_the_example_of_the_page_runs(self):
        of = decode_definition(16)
        axes = {"batch_size": 2, "num_pages": 4, "len_indptr": 3, "num_kv_indices": 3}
        self.set.add(of, [workload(of, "one", axes)], [solution("right", of, decode())])
        text = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8").partition("## FlashInfer-Trace")[2]
        script = text.partition("```sh\n")[2].partition("```")[0]
        done = subprocess.run(["bash", "-euc", f'attnbench() {{ "{BINARY}" "$@"; }}\n{script}'],
                              cwd=self.dir / "set", env=self.environment(), capture_output=True, text=True,
                              timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        traces = (self.dir / "set" / "traces.jsonl").read_text().splitlines()
        self.assertEqual({strict_json(line)["solution"] for line in traces}, {"TRITON_ATTN", "right"})


class TheirModels(TraceTest):
    """flashinfer-bench's own pydantic models write what is read here, and read what is written."""

    def setUp(self):
        super().setUp()
        self.models = {name: getattr(flashinfer_bench(module), name) for module, name in
                       (("trace", "Trace"), ("definition", "Definition"), ("solution", "Solution"))}  # fmt: skip

    def test_they_accept_the_records_of_every_status(self):
        of = decode_definition(16)
        axes = {"batch_size": 3, "num_pages": 9, "len_indptr": 4, "num_kv_indices": 7}
        raises = decode().replace("    paged", "    raise ValueError('no')\n    paged")
        texts = {"right": decode(), "wrong": decode(", base=3.0"), "raises": raises, "broken": "def run(:\n"}
        self.set.add(of, [workload(of, "one", axes, 0.2)],
                     [solution(name, of, text) for name, text in texts.items()])  # fmt: skip
        self.run_set("--trace-json", "t.jsonl", code=1)
        traces = [self.models["Trace"].model_validate_json(line)
                  for line in (self.dir / "t.jsonl").read_text().splitlines()]  # fmt: skip
        self.assertEqual({trace.solution: trace.evaluation.status.value for trace in traces},
                         {"TRITON_ATTN": "PASSED", "right": "PASSED", "wrong": "INCORRECT_NUMERICAL",
                          "raises": "RUNTIME_ERROR", "broken": "COMPILE_ERROR"})  # fmt: skip
        for trace in traces:
            self.assertEqual(trace.definition, of["name"])
            self.assertEqual(trace.workload.inputs["sm_scale"].value, 0.2)
            self.assertTrue(trace.evaluation.environment.hardware)

    def test_files_that_their_models_write_are_read(self):
        of = decode_definition(16)
        for tensor in of["inputs"].values():  # their enumeration has no "unknown"
            tensor["dtype"] = tensor["dtype"].replace("unknown", "int32")
            tensor.pop("optional", None)
        line = workload(of, "one", {"batch_size": 3, "num_pages": 9, "len_indptr": 4, "num_kv_indices": 7})
        right = self.models["Solution"](**solution("right", of, decode()))
        written = self.models["Definition"](**of)
        trace = self.models["Trace"](**line)
        place = f"gqa_paged/{of['name']}"
        self.set.write(f"definitions/{place}.json", written.model_dump_json(indent=2))
        self.set.write(f"workloads/{place}.jsonl", trace.model_dump_json() + "\n")
        self.set.write(f"solutions/tests/{place}/right.json", right.model_dump_json())
        self.assertEqual(self.run_set()["right"]["status"], "passed")


if __name__ == "__main__":
    unittest.main()
