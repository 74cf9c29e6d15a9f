"""Solutions of a FlashInfer-Trace set in Triton and CUDA on a GPU, through the real binary. Skipped, with the reason,
where there is no GPU, or no Python with torch for it.

    ATTNBENCH_BIN=build/attnbench python3 -B tests/cli/gpu_solutions_test.py --verbose
"""

import subprocess
import sys
import unittest

import compiled_solutions
from compiled_solutions_test import NATURAL, SolutionsTest
from gpu_test import no_gpu
from pythons import PACKAGE_DIR, has_packages, python_with_torch
from trace_sets import TraceFolder

# nvcc takes tens of seconds for a file with torch's headers.
BUILD_LIMIT_S = 500
BUILD = """\
import sys
sys.path.insert(0, sys.argv[1])
from attnbench import solutions
solutions.build(solutions.read(sys.argv[2]))
"""


@unittest.skipIf(no_gpu(), no_gpu())
class OnGpu(SolutionsTest):
    device, dtype = "cuda", "bfloat16"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.python = python_with_torch("torch.cuda")

    def build_first(self):
        """Builds in a process of their own, so that what the compiler says is seen, and the case only loads them."""
        for file in sorted((self.dir / "set" / "solutions").rglob("*.json")):
            done = subprocess.run([self.python, "-B", "-c", BUILD, PACKAGE_DIR, file], cwd=self.dir, text=True,
                                  env=self.environment(), capture_output=True, timeout=BUILD_LIMIT_S)  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def check_on_gpu(self, right, natural):
        of = compiled_solutions.definition(self.dtype)
        TraceFolder(self.dir / "set").add(of, [], [right(of), natural(of)])
        self.build_first()
        names = [make(of)["name"] for make in (right, natural)]
        for mode in ("stream", "graph"):
            results = self.judged(right, natural, options=("--set", f"timing.mode={mode}"))
            self.check(results, *names)
            for name in names:
                self.assertEqual(results[name]["device"].split(":")[0], "cuda")
            self.assertEqual(results[names[0]]["timing"]["mode"], mode)
            self.assertGreater(results[names[0]]["throughput"]["gbps"], 0)

    def test_triton(self):
        if not self.can("triton"):
            return
        self.check_on_gpu(lambda of: compiled_solutions.triton("in_triton", of),
                          lambda of: compiled_solutions.triton("natural", of, NATURAL))  # fmt: skip

    def test_cuda_built_by_torch(self):
        self.check_on_gpu(lambda of: compiled_solutions.compiled("by_torch", of, "cuda", "torch"),
                          lambda of: compiled_solutions.compiled("natural", of, "cuda", "torch", NATURAL))

    def test_cuda_built_by_tvm_ffi(self):
        if not self.can("tvm_ffi"):
            return
        self.check_on_gpu(lambda of: compiled_solutions.compiled("by_tvm_ffi", of, "cuda", "tvm-ffi"),
                          lambda of: compiled_solutions.compiled("natural", of, "cuda", "tvm-ffi", NATURAL))

    def can(self, package):
        """Why no skip: ctest counts a whole file as skipped in which one test says so."""
        if has_packages(self.python, [package]):
            return True
        print(f"not tried: {self.python} has no {package}", file=sys.stderr)
        return False


if __name__ == "__main__":
    unittest.main()
