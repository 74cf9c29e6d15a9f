"""The package attnbench from Python, driving the real binary: scenarios as dicts and files, results as
values and tables, functions judged wherever they were defined, the fixtures of pytest.

Its torch is that of tests/python/fake_torch; with a real one (ATTNBENCH_PYTHON) the examples of the
documents are judged as they are written.
"""

import json
import os
import re
import subprocess
import unittest

from pythons import FAKE_TORCH, PACKAGE_DIR, PythonTest, has_packages, python_with_torch
from tool import BINARY, ROOT, TIME_LIMIT_S, TINY, skip_without, thorough

# Attention in numpy over [B, H, Q, D], which is what a tensor of the fake torch is.
ATTENTION = '''\
import numpy as np

def attention(query, key, value, *, scale, causal):
    """attention in numpy"""
    import torch
    group = query.shape[1] // key.shape[1]
    key, value = np.repeat(key, group, 1), np.repeat(value, group, 1)
    scores = np.einsum("bhqd,bhkd->bhqk", query, key) * scale
    if causal:
        first = key.shape[2] - query.shape[2]
        scores = np.where(np.tri(*scores.shape[2:], first, dtype=bool), scores, -np.inf)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    output = np.einsum("bhqk,bhkd->bhqd", weights / total, value).astype(np.float32)
    lse = (most + np.log(total))[..., 0].astype(np.float32)
    return output.view(torch.Tensor), lse.view(torch.Tensor)
'''
SMALL = {"attention": {"dtype": "float32"}, "batch": "2q9_3q1s20"}
HEAD = f"import attnbench, json\nSMALL = {SMALL!r}\nCPU = dict(device='cpu', no_timing=True)\n"


class Api(PythonTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.need("numpy", modules=[FAKE_TORCH, PACKAGE_DIR])

    def script(self, text, *, name="script.py", python=None, head=HEAD, code=0, arguments=(), **changes):
        """stdout of a script that uses the package."""
        self.write(name, head + text)
        done = subprocess.run(
            [python or self.python, "-B", *(arguments or [name])], cwd=self.dir, text=True,
            env=self.environment(ATTNBENCH_BIN=BINARY, **changes), capture_output=True,
            stdin=subprocess.DEVNULL, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stdout + done.stderr

    def status_of(self, text, **options):
        """What the last line of a script's output has as JSON."""
        return json.loads(self.script(text, **options).splitlines()[-1])


class Runs(Api):
    def test_a_dict_a_file_and_a_list_of_them_are_run(self):
        self.write("tiny.yaml", TINY)
        out = self.script(
            "case = {'name': 'mine', 'attention': {'type': 'decoder', 'num_heads': 2, 'head_size': 32,"
            " 'dtype': 'bfloat16'}, 'batch': 'q5'}\n"
            "for one in (case, 'tiny.yaml', [case, 'tiny.yaml']):\n"
            "    results = attnbench.run(one, backend='FLASH_ATTN', **CPU)\n"
            "    print([(r.id, r.status) for r in results], results.exit_code, results.passed)\n")  # fmt: skip
        mine, tiny = "('mine/q5/FLASH_ATTN', 'passed')", "('tiny/q32_4q1s100/FLASH_ATTN', 'passed')"
        self.assertEqual(out.splitlines(), [f"[{mine}] 0 True", f"[{tiny}] 0 True",
                                            f"[{mine}, {tiny}] 0 True"])  # fmt: skip

    def test_results_are_values_with_the_names_of_the_result_file(self):
        out = self.status_of(
            "results = attnbench.run({**SMALL, 'attention': {'type': 'decoder', 'num_heads': 2,\n"
            "    'head_size': 32, 'dtype': 'bfloat16'}}, backend='FLASH_ATTN', device='cpu', samples=3,\n"
            "    json='out.json')\n"
            "(r,) = results\n"
            "assert r.raw == json.load(open('out.json'))['results'][0]\n"
            "assert r.error.max_abs == r.raw['error']['max_abs'] <= r.error.raw['max_abs']\n"
            "assert r.timing.median_us == r.raw['timing']['median_us'] > 0\n"
            "assert r.throughput.gbps > 0 and r.problem['attention']['num_kv_heads'] == 2\n"
            "assert r.error.row_limit == r.raw['error']['row_limit']  # no field, an attribute\n"
            "try: r.error.no_such\n"
            "except AttributeError as error: assert 'max_abs' in str(error)\n"
            "else: raise SystemExit('an attribute that there is not')\n"
            "assert attnbench.load('out.json')[0] == r\n"
            "assert '<td>FLASH_ATTN</td>' in results._repr_html_()\n"
            "print(json.dumps(str(results)))\n")  # fmt: skip
        self.assertRegex(out, r"2q9_3q1s20 +FLASH_ATTN +passed ")

    def test_options_are_those_of_the_command_line(self):
        out = self.status_of(
            "results = attnbench.run('smoke-gqa', device='cpu', no_timing=True, seed=7, no_cublaslt=False,\n"
            "    backend=['FLASH_ATTN', 'TRITON_ATTN'], set={'attention.head_size': 96, 'batch': 'q3'})\n"
            "print(json.dumps([[r.backend, r.problem['attention']['head_size'],\n"
            "                   r.problem['inputs']['seed']] for r in results]))")  # fmt: skip
        self.assertEqual({tuple(one) for one in out}, {("FLASH_ATTN", 96, 7), ("TRITON_ATTN", 96, 7)})

    def test_files_of_a_dict_are_those_of_the_working_directory(self):
        self.write("sub/trace.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,5\n1,20,5\n")
        out = self.status_of(
            "results = attnbench.run({'attention': {'type': 'decoder', 'num_heads': 2, 'head_size': 32,\n"
            "    'dtype': 'bfloat16'}, 'batch': {'trace': 'sub/trace.csv', 'format': 'azure_llm',\n"
            "    'requests': 2, 'step': 2}}, backend='FLASH_ATTN', **CPU)\n"
            "print(json.dumps(results[0].case))")  # fmt: skip
        self.assertEqual(out, "trace-step2")

    def test_a_faulty_scenario_raises_with_the_words_of_the_program(self):
        out = self.status_of(
            "try: attnbench.run({'batch': 'q3x', 'attention': {'type': 'decoder'}})\n"
            "except attnbench.AttnbenchError as error: print(json.dumps([error.exit_code, str(error)]))")
        self.assertEqual(out[0], 2)
        self.assertRegex(out[1], "E-CONFIG: .*scenario.json:[0-9]+: .*q3x")
        text = self.script("attnbench.run('smoke-gqa', no_such_option=1)", code=1)
        self.assertIn("--no-such-option", text)

    def test_old_results_are_not_taken_for_new_ones(self):
        self.write("old.json", '{"schema_version": 1, "results": []}')
        text = self.script("attnbench.run({'batch': 'nothing'}, json='old.json')", code=1)
        self.assertIn("AttnbenchError", text)

    def test_results_that_go_elsewhere_are_no_error_of_exit_code_0(self):
        text = self.script("attnbench.run(SMALL, json='-', **CPU)", code=1)
        self.assertIn("ValueError: json=\"-\": expected the path of a file", text)
        silent = self.write("silent", "#!/bin/sh\nexit 0\n")
        os.chmod(silent, 0o755)
        text = self.script("import os\nos.environ['ATTNBENCH_BIN'] = './silent'\nattnbench.run(SMALL, **CPU)",
                           code=1, OMPI_COMM_WORLD_RANK="3")  # fmt: skip
        self.assertIn("with rank 0, and OMPI_COMM_WORLD_RANK is 3 here", text)

    def test_without_a_program_the_error_names_the_variable(self):
        text = self.script("attnbench.run('smoke')", code=1, name="lost.py",
                           head="import os\nos.environ['ATTNBENCH_BIN'] = 'nowhere'\nimport attnbench\n")  # fmt: skip
        self.assertIn("ATTNBENCH_BIN is 'nowhere'", text)

    def test_a_table_of_pandas_has_a_row_a_result_and_dotted_columns(self):
        if not has_packages(self.python, ["pandas"]):
            skip_without("pandas")
        out = self.status_of(
            "frame = attnbench.run('smoke-gqa', backend=['FLASH_ATTN', 'TRITON_ATTN'], **CPU).to_dataframe()\n"
            "print(json.dumps([frame.index.name, list(frame['backend'].unique()),\n"
            "    bool((frame['error.err_ratio'] < 3).all()), str(frame['problem.attention.num_heads'].dtype)]))")  # fmt: skip
        self.assertEqual(out, ["id", ["FLASH_ATTN", "TRITON_ATTN"], True, "int64"])

    def test_the_package_imports_nothing_until_it_is_used(self):
        out = self.script("import sys\nprint([m for m in sys.modules if m.startswith('attnbench.')])")
        self.assertEqual(out, "[]\n")


class Judged(Api):
    def test_a_function_of_a_module_is_imported_and_passes(self):
        self.write("kernels_of_mine.py", ATTENTION)
        out = self.script(
            "from kernels_of_mine import attention\n"
            "results = attnbench.judge(attention, SMALL, lse='natural', backend='TRITON_ATTN', keep='kept', **CPU)\n"
            "assert results.check() is results\n"
            "print([(r.backend, r.status, r.lse_error.nan_count) for r in results])\n")  # fmt: skip
        self.assertEqual(out, "[('python:attnbench_judged:Attention', 'passed', 0), "
                              "('TRITON_ATTN', 'passed', 0)]\n")  # fmt: skip
        self.assertIn("from kernels_of_mine import attention",
                      (self.dir / "kept" / "attnbench_judged.py").read_text())  # fmt: skip
        self.assertTrue((self.dir / "kept" / "scenario.json").exists())

    def test_functions_of_a_script_come_with_what_they_use(self):
        # A constant, a function, a module by another name, a decorator, a closure, a default, a lambda.
        out = self.script(
            ATTENTION + "import functools, math as m\n"
            "TWO, query = 2, object()  # the latter is hidden by a parameter\n"
            "def halved(x): return x * m.pow(TWO, -1)\n"
            "def outer(factor=2.0):\n"
            "    def inner(query, key, value, *, scale, causal=TWO):\n"
            "        return attention(halved(query) * factor, key, value, scale=scale, causal=causal)\n"
            "    return inner\n"
            "def twice(f):\n"
            "    @functools.wraps(f)\n"
            "    def call(*a, **k): return f(*a, **k)\n"
            "    return call\n"
            "@twice\n"
            "def decorated(query, key, value, scale, causal): return attention(query, key, value, scale=scale, causal=causal)\n"
            "for f in (attention, outer(), decorated,\n"
            "          lambda q, k, v, scale: attention(q, k, v, scale=scale, causal=True)):\n"
            "    print(attnbench.judge(f, SMALL, **CPU)[0].status)\n")  # fmt: skip
        self.assertEqual(out.split(), ["passed"] * 4)

    def test_a_wrong_function_is_found_out_and_check_says_how(self):
        wrong = ATTENTION.replace("weights / total", "weights")
        text = self.script(wrong + "attnbench.judge(attention, SMALL, **CPU).check()", code=1)
        self.assertRegex(text, r"AssertionError: attnbench: (.|\n)*incorrect(.|\n)*outside")

    def test_a_declared_lse_is_judged_and_another_second_value_is_not(self):
        statuses = self.status_of(
            ATTENTION + "print(json.dumps([attnbench.judge(attention, SMALL, lse=lse, **CPU)[0].status\n"
            "                  for lse in (None, 'natural', 'base_2')]))")  # fmt: skip
        self.assertEqual(statuses, ["passed", "passed", "incorrect"])

    def test_every_layout_has_its_shapes_and_arguments(self):
        text = ATTENTION + '''
def tokens_first(query, key, value, *, scale, causal):
    q, k, v = (one.transpose(1, 2) for one in (query, key, value))
    return attention(q, k, v, scale=scale, causal=causal)[0].transpose(1, 2)

def ragged(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale, causal):
    assert (max_seqlen_q, max_seqlen_k) == (max(np.diff(cu_seqlens_q)), max(np.diff(cu_seqlens_k)))
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == np.int32
    parts = []
    for a, b, c, d in zip(cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:]):
        one = [part[None].transpose(1, 2) for part in (query[a:b], key[c:d], value[c:d])]
        parts.append(attention(*one, scale=scale, causal=causal)[0][0].transpose(0, 1))
    import torch
    return np.concatenate(parts).view(torch.Tensor)

def paged(query, key_cache, value_cache, *, block_table, seq_lens, cu_seqlens_q, scale, causal):
    import torch
    rows = lambda cache, blocks, n: cache[blocks[: -(-n // cache.shape[1])]].reshape(-1, *cache.shape[2:])[:n]
    parts = []
    for blocks, n, a, b in zip(block_table, seq_lens, cu_seqlens_q, cu_seqlens_q[1:]):
        one = [part[None].transpose(1, 2) for part in
               (query[a:b], rows(key_cache, blocks, n), rows(value_cache, blocks, n))]
        parts.append(attention(*one, scale=scale, causal=causal)[0][0].transpose(0, 1))
    return np.concatenate(parts).view(torch.Tensor)

judged = [attnbench.judge(f, SMALL, layout=layout, **CPU) for f, layout in
          ((tokens_first, "BSHD"), (ragged, "ragged"), (paged, "paged"))]
print(judged)
print(json.dumps([results[0].status for results in judged]))
'''
        out = self.script(text)
        self.assertEqual(json.loads(out.splitlines()[-1]), ["passed"] * 3, out)

    def test_what_cannot_be_handed_over_is_named(self):
        text = ATTENTION + '''
weights = open(__file__)
def uses_it(query, key, value): return weights
def shadow(f): return lambda q, k, v: f(q, k, v)
wrapped = shadow(attention)
import functools
@functools.wraps(attention)
def covers(*a, **k): return attention(*a, **k)
class Method:
    def run(self, q, k, v): return q
for f in (uses_it, Method().run, functools.partial(attention, causal=1), covers):
    try: attnbench.judge(f)
    except TypeError as error: print(error)
two = [lambda q, k, v: q, lambda q, k, v: k]
try: attnbench.judge(two[0])
except TypeError as error: print(error)
for bad in (dict(layout="DSHB"), dict(features=["flying"])):
    try: attnbench.judge(attention, **bad)
    except ValueError as error: print(error)
'''
        lines = self.script(text).splitlines()
        for line, words in zip(lines, ("'weights', a TextIOWrapper", "a method", "functools.partial",
                                       "wrapped outside of its definition", "2 functions begin in line",
                                       "found 'DSHB'", "unknown 'flying'")):  # fmt: skip
            self.assertIn(words, line)
        self.assertEqual(len(lines), 7)

    def test_a_feature_that_is_not_named_is_unsupported(self):
        out = self.script(
            ATTENTION + "windowed = {**SMALL, 'attention': {'dtype': 'float32', 'sliding_window': 4}}\n"
            "results = attnbench.judge(attention, windowed, **CPU)\n"
            "print(results[0].status, results[0].reasons, results.passed, results.exit_code)")  # fmt: skip
        self.assertRegex(out, r"unsupported \('.*SLIDING_WINDOW.*',\) False 3")

    def test_the_results_of_a_notebook_cell_are_judged_from_its_source(self):
        # As IPython does: the text of a cell is in linecache and in no file.
        cell = ATTENTION + "results = attnbench.judge(attention, SMALL, **CPU)\n"
        out = self.script(
            f"import linecache\ncell = {cell!r}\n"
            "linecache.cache['<cell 1>'] = (len(cell), None, cell.splitlines(True), '<cell 1>')\n"
            "exec(compile(cell, '<cell 1>', 'exec'))\nprint(results[0].status)")  # fmt: skip
        self.assertEqual(out, "passed\n")


class Pytest(Api):
    TESTS = ATTENTION + (
        f"SMALL = {SMALL!r}\n"
        "def test_right(attnbench_judge):\n    attnbench_judge(attention, SMALL)\n"
        "def test_local(attnbench_judge):\n"
        "    def broken(query, key, value, *, scale): return attention(query, key, value, scale=2 * scale, causal=True)\n"
        "    attnbench_judge(broken, SMALL)\n"
        "def test_run(attnbench_run):\n"
        "    assert attnbench_run('smoke-gqa', backend='FLASH_ATTN')[0].timing is None\n")  # fmt: skip

    def test_fixtures_fail_what_is_incorrect_and_only_that(self):
        if not has_packages(self.python, ["pytest"]):
            skip_without("pytest")
        self.write("test_mine.py", self.TESTS)
        text = self.script("", code=1, arguments=["-m", "pytest", "-q", "-p", "attnbench.pytest_plugin", "-p",
                                                  "no:cacheprovider", "--attnbench-device", "cpu"])  # fmt: skip
        self.assertIn("1 failed, 2 passed", text)
        self.assertRegex(text, r"test_local(.|\n)*attnbench:\n(.|\n)*incorrect")


class Documents(PythonTest):
    """The examples of docs/interop.md: with a real torch (ATTNBENCH_PYTHON) as they are written, else with
    that of the tests and in float32, because numpy has no bfloat16."""

    IN_FLOAT32 = (("enable_gqa=True)))", "enable_gqa=True), {'attention': {'dtype': 'float32'}}, samples=3))"),
                  ('{"batch": "4q1s300"}', '{"batch": "4q1s300", "attention": {"dtype": "float32"}}'))  # fmt: skip

    def setUp(self):
        super().setUp()
        try:
            self.python, self.modules, self.is_real = python_with_torch(), [PACKAGE_DIR], True
        except (AssertionError, unittest.SkipTest):
            self.need("numpy", modules=[FAKE_TORCH, PACKAGE_DIR])
            self.is_real = False

    def example(self, index):
        text = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8")
        section = text.partition("## From Python")[2].partition("\n## ")[0]
        return re.findall(r"```python\n(.*?)```", section, re.S)[index]

    def run_example(self, index, arguments=()):
        text = self.example(index)
        if not self.is_real and "torch" in text:
            (in_float32,) = {text.replace(*words) for words in self.IN_FLOAT32} - {text}
            text = in_float32
        file = self.write("test_example.py" if arguments else "example.py", text)
        done = subprocess.run([self.python, "-B", *arguments, file], cwd=self.dir, text=True,
                              env=self.environment(ATTNBENCH_BIN=BINARY), capture_output=True,
                              timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    @thorough
    def test_the_first_example_passes(self):
        self.assertIn("passed", self.run_example(0))

    @thorough
    def test_the_second_example_runs_a_dict(self):
        self.assertIn("FLASH_ATTN", self.run_example(1))

    def test_the_third_example_is_a_test_of_pytest(self):
        if not has_packages(self.python, ["pytest"]):
            skip_without("pytest")
        self.assertIn("1 passed", self.run_example(
            2, arguments=["-m", "pytest", "-q", "-p", "attnbench.pytest_plugin"]))  # fmt: skip


if __name__ == "__main__":
    unittest.main()
