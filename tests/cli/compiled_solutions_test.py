"""Solutions of a FlashInfer-Trace set in C++, built by torch and by tvm-ffi and judged on the CPU, through the real
binary. Needs a Python with torch (ATTNBENCH_PYTHON); those on a GPU are in gpu_solutions_test.py."""

import unittest

import compiled_solutions
from pythons import PythonTest, has_packages, python_with_torch
from tool import strict_json
from trace_sets import TraceFolder, workload

AXES = {"batch_size": 3, "num_pages": 9, "len_indptr": 4, "num_kv_indices": 7}
NATURAL = "1.0"


class SolutionsTest(PythonTest):
    """`device` runs them; `dtype` is that of the definition."""

    device, dtype = "cpu", "float32"
    time_limit_s = 1000  # three builds by torch, each of which may take up to --hang-limit

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.python = python_with_torch("torch")

    def environment(self, **changes):
        return super().environment(XDG_CACHE_HOME=str(self.dir / "cache"), **changes)

    def judged(self, *solutions, code=1, options=()):
        """Results by solution; at least one native backend has passed beside them."""
        of = compiled_solutions.definition(self.dtype)
        folder = TraceFolder(self.dir / "set")
        folder.add(of, [workload(of, "one", AXES, 0.2)], [make(of) for make in solutions])
        self.expect(code, "run", "--trace-set", "set", "--device", self.device, "--set", "timing.samples=3", "--set",
                    "timing.min_time_ms=1", "--set", "timing.timeout_s=5", "--hang-limit", 300, "--json", "r.json",
                    *options)  # fmt: skip
        results = strict_json((self.dir / "r.json").read_text())["results"]
        native = [result["status"] for result in results if not result["backend"].startswith("python:")]
        self.assertIn("passed", native)
        return {result["backend"].rsplit(":", 1)[-1]: result for result in results}

    def check(self, results, right, natural):
        self.assertEqual((results[right]["status"], results[right]["reasons"]), ("passed", []))
        self.assertGreater(results[right]["timing"]["median_us"], 0)
        self.assertEqual(results[natural]["status"], "incorrect", results[natural]["reasons"])
        self.assertIn("LSE is natural, declared base 2", " ".join(results[natural]["reasons"]))


class OnCpu(SolutionsTest):
    def test_cpp_in_both_bindings_is_built_and_judged(self):
        made = [lambda of: compiled_solutions.compiled("by_torch", of, "cpp", "torch"),
                lambda of: compiled_solutions.compiled("natural", of, "cpp", "torch", NATURAL)]
        has_tvm_ffi = has_packages(self.python, ["tvm_ffi"])
        if has_tvm_ffi:
            made.append(lambda of: compiled_solutions.compiled("by_tvm_ffi", of, "cpp", "tvm-ffi"))
        results = self.judged(*made)
        self.check(results, "by_torch", "natural")
        if has_tvm_ffi:
            self.check(results, "by_tvm_ffi", "natural")

    def test_cpp_that_does_not_build_is_an_error_with_the_compiler_s_words(self):
        def broken(of):
            made = compiled_solutions.compiled("broken", of, "cpp", "torch")
            made["sources"][0]["content"] += "\nint broken = no_such_name;\n"
            return made

        results = self.judged(broken, code=4, options=("--trace-json", "t.jsonl"))
        self.assertEqual(results["broken"]["status"], "error")
        self.assertIn("solution does not build", results["broken"]["reasons"][0])
        records = map(strict_json, (self.dir / "t.jsonl").read_text().splitlines())
        self.assertIn(("broken", "COMPILE_ERROR"),
                      [(record["solution"], record["evaluation"]["status"]) for record in records])  # fmt: skip


if __name__ == "__main__":
    unittest.main()
