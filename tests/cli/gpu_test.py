"""What only a GPU can show, through the real binary. Skipped, with the reason, where there is none.

    ATTNBENCH_BIN=build/attnbench python3 tests/cli/gpu_test.py --verbose
"""

import json
import re
import struct
import subprocess
import unittest

from tool import BINARY, ROOT, TINY, ToolTest, cuda_library, nvcc, strict_json

# Two cases on three backends each: faults are planted in the first, the second must not notice.
CASES = TINY.replace("batch: q32_4q1s100", "batch: [q32_4q1s100, 3q1s70]")
# Seconds of silence that end a case. Kernels are compiled in silence, which takes seconds.
HANG_LIMIT = 30


MM_ENCODER = """\
schema: 1
name: mm
attention: {type: mm_encoder, num_heads: 4, num_kv_heads: 2, head_size: 72}
mm_encoder: {layer_names: {template: 'blocks.{}.attn', count: 3}}
batch: [q33_q1_q40, q200]
"""


def float_bits(value):
    """A positive float32 as an integer that counts up with it."""
    return struct.unpack("<i", struct.pack("<f", value))[0]


def no_gpu():
    """Why there is no CUDA device to run on, or nothing."""
    try:
        listed = subprocess.run([BINARY, "device", "--no-timing"], capture_output=True, text=True)
    except OSError as error:
        return str(error)
    lines = [line for line in listed.stdout.splitlines() if line.startswith("cuda")]
    return None if any(line.startswith("cuda:") for line in lines) else "; ".join(lines)


@unittest.skipIf(no_gpu(), no_gpu())
class Gpu(ToolTest):
    def run_on_gpu(self, *arguments, code=0):
        self.write("tiny.yaml", CASES)
        # Why a cache of this test's own folder: a fault must be found with kernels compiled anew.
        results = self.results("tiny.yaml", "--device", "cuda", "--cache-dir", "cache",
                               *arguments, code=code)  # fmt: skip
        return {tuple(id.split("/")[1:]): result for id, result in results.items()}

    def test_kernels_are_compiled_ahead_and_make_no_difference(self):
        self.write("tiny.yaml", CASES)
        statuses = []
        for jobs in ("2", "0"):
            outcome = self.expect(0, "run", "tiny.yaml", "--device", "cuda", "--cache-dir", "cache" + jobs,
                                  "--compile-jobs", jobs, "--no-timing", "-v", "--json", "-")  # fmt: skip
            said = re.search(r"(\d+) kernels? (?:was|were) compiled ahead, up to 2 at a time", outcome.err)
            self.assertEqual(said is not None, jobs == "2", outcome.err)
            if said:
                self.assertGreater(int(said[1]), 0)
            # Not the hashes: a cubin holds the number of the process that compiled it.
            statuses.append([(result["id"], result["status"],
                              [{key: kernel[key] for key in kernel if key != "cubin_hash"}
                               for kernel in result["kernels"]])
                             for result in strict_json(outcome.out)["results"]])  # fmt: skip
        self.assertEqual(*statuses)

    def check_named(self, result, *parts):
        """An error whose only reason has all the parts, with the problem and how to repeat it."""
        self.assertEqual(result["status"], "error", result["reasons"])
        for part in parts:
            self.assertIn(part, result["reasons"][0])
        self.assertEqual(result["problem"]["attention"]["head_size"], 64)
        self.assertIn("--plant-fault", result["repro"])
        self.assertIsNone(result["timing"])

    def test_a_hang_a_crash_and_an_overrun_end_their_own_case_and_name_the_kernel(self):
        results = self.run_on_gpu(
            "--no-timing", "--hang-limit", HANG_LIMIT,
            "--plant-fault", "overrun=/q32_4q1s100/FLASH_ATTN$",
            "--plant-fault", "crash=/q32_4q1s100/FLASH_ATTN_IX$",
            "--plant-fault", "hang=/q32_4q1s100/TRITON_ATTN$",
            code=4)  # fmt: skip
        self.check_named(results["q32_4q1s100", "FLASH_ATTN"], "out-of-bounds write",
                         "planted buffer: 4 bytes past its end", "'planted overrun'",
                         "attn::planted_write {kValue = 1u}")  # fmt: skip
        self.check_named(results["q32_4q1s100", "FLASH_ATTN_IX"], "cudaErrorIllegalAddress",
                         "'planted crash'", "attn::planted_write {kValue = 1u}")  # fmt: skip
        self.check_named(results["q32_4q1s100", "TRITON_ATTN"], "time limit", "in phase 'run'",
                         "'planted hang'", "attn::planted_hang {kValue = 1u}")  # fmt: skip
        for backend in ("FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"):
            self.assertEqual(results["3q1s70", backend]["status"], "passed")

    @unittest.skipUnless(nvcc(), "no nvcc")
    def test_a_cuda_plugin_is_judged_and_timed_beside_the_built_in_backends(self):
        library = cuda_library("examples/plugin/naive_attention.cu", self.dir / "libnaive.so")
        for mode in ("stream", "graph"):
            results = self.run_on_gpu("--plugin", library, "--set", f"timing.mode={mode}")
            for case in ("q32_4q1s100", "3q1s70"):
                result = results[case, "NAIVE_CUDA"]
                self.assertEqual(result["status"], "passed", result["reasons"])
                self.assertEqual(result["timing"]["mode"], mode)
                self.assertGreater(result["throughput"]["gbps"], 0)
                self.assertTrue(result["batch_invariance"]["equal"])
                self.assertEqual(result["plugin"]["version"], "1.0")

    @unittest.skipUnless(nvcc(), "no nvcc")
    def test_faults_of_a_cuda_plugin_cost_their_own_case_and_are_named(self):
        library = cuda_library("tests/plugins/faulty_cuda.cu", self.dir / "libfaulty.so")
        results = self.run_on_gpu("--plugin", library, "--no-timing", "--hang-limit", HANG_LIMIT,
                                  "--filter", "/3q1s70/", code=1)  # fmt: skip
        for backend, status, *parts in (
            ("FLASH_ATTN", "passed"),
            ("CUDA_WRONG", "incorrect", "output["),
            ("CUDA_OVERRUN", "error", "out-of-bounds write: output: 1 byte past its end",
             "run() of CUDA_OVERRUN"),
            ("CUDA_FAR_OVERRUN", "error", "out-of-bounds write: output: 1 byte past its end"),
            # The value changes nothing; it is seen by what is mapped there in a run for that.
            ("CUDA_OVERREAD", "error", "reads or writes past the end of 'seq_lens'",
             "cudaErrorIllegalAddress"),
            ("CUDA_CRASHES", "error", "cudaErrorIllegalAddress", "run() of CUDA_CRASHES"),
            ("CUDA_HANGS", "error", "time limit", "run() of CUDA_HANGS"),
            # Its time would be that of an empty stream.
            ("CUDA_DEFAULT_STREAM", "incorrect"),
            ("CUDA_WAITS", "incorrect", "run() waits for the stream that it is given"),
        ):  # fmt: skip
            result = results["3q1s70", backend]
            self.assertEqual(result["status"], status, (backend, result["reasons"]))
            for part in parts:
                self.assertIn(part, result["reasons"][0])

    @unittest.skipUnless(nvcc(), "no nvcc")
    def test_timed_samples_of_a_cuda_plugin_that_do_not_do_the_work_are_incorrect(self):
        """Each is right until everything that is not timed was checked."""
        library = cuda_library("tests/plugins/faulty_cuda.cu", self.dir / "libfaulty.so")
        for backend, mode in (
            ("CUDA_LATER_DEFAULT_STREAM", "stream"),
            ("CUDA_LATER_OWN_STREAM", "stream"),
            ("CUDA_LATER_UNJOINED", "stream"),
            ("CUDA_NOT_RECORDED", "graph"),
        ):
            results = self.run_on_gpu("--plugin", library, "--backend", backend, "--samples", "40",
                                      "--set", f"timing.mode={mode}", "--filter", "/3q1s70/",
                                      code=1)  # fmt: skip
            result = results["3q1s70", backend]
            self.assertEqual(result["status"], "incorrect", (backend, result["reasons"]))
            self.assertIn("timed sample ", result["reasons"][0])
            self.assertIsNone(result["timing"])

    def test_every_timed_result_has_samples_that_were_judged(self):
        for mode in ("stream", "graph"):
            for result in self.run_on_gpu("--set", f"timing.mode={mode}").values():
                self.assertEqual(result["status"], "passed", result["reasons"])
                self.assertGreaterEqual(len(result["timing"]["checked_samples"]), 3)

    def test_built_in_kernels_stay_inside_of_their_buffers(self):
        for result in self.run_on_gpu("--all-edges", "--no-timing").values():
            if result["status"] != "unsupported":
                self.assertEqual(result["status"], "passed", (result["id"], result["reasons"]))

    def test_a_result_says_what_clock_its_samples_had_and_how_the_device_was_paced(self):
        for pace in ("cool", "sustained"):
            for result in self.run_on_gpu("--set", f"timing.pace={pace}").values():
                if result["timing"] is None:
                    continue
                timing = result["timing"]
                self.assertEqual(timing["pace"], pace)
                self.assertEqual(len(timing["samples_sm_mhz"]), len(timing["samples_us"]))
                for mhz in timing["samples_sm_mhz"]:
                    self.assertTrue(200 < mhz < 4000, (result["id"], mhz))
                cycles = timing["median_us"] * sorted(timing["samples_sm_mhz"])[
                    len(timing["samples_us"]) // 2]
                self.assertTrue(0.8 < timing["cycles"] / cycles < 1.25, (result["id"], cycles))

    def test_a_timed_result_says_what_its_time_can_be_believed_by(self):
        listed = self.expect(0, "device", "--no-timing", "--json", "-")
        cache_bytes = strict_json(listed.out)["devices"][0]["l2_bytes"]
        results = [(l2, result) for l2 in ("cold", "clean")
                   for result in self.run_on_gpu("--set", f"timing.l2={l2}").values()]  # fmt: skip
        for l2, result in results:
            timing = result["timing"]
            self.assertEqual((timing["l2"], timing["mode"]), (l2, "stream"))
            self.assertGreaterEqual(timing["flushed_bytes"], 2 * cache_bytes)
            self.assertGreater(timing["launch_overhead_us"], 0)
            clocks = timing["clocks"]
            self.assertLessEqual(clocks["sm_mhz_min"], clocks["sm_mhz_median"])
            self.assertLessEqual(clocks["sm_mhz_median"], clocks["sm_mhz_max"])
            self.assertIsInstance(clocks["throttling"], list)
            self.assertGreater(result["throughput"]["roofline_pct"], 0)
            self.assertTrue(result["kernels"])

    def multipliers(self, *arguments):
        """Who multiplied in the cases of a small MLA suite, whose projections are steps of their own:
        libraries' versions and "own"."""
        found = set()
        for id, result in self.results("smoke-mla", "--backend", "MLA", "--device", "cuda",
                                       "--set", "mla.fused_steps=false",
                                       "--samples", "3", *arguments).items():  # fmt: skip
            self.assertEqual(result["status"], "passed", (id, result["reasons"]))
            names = [k["name"] for k in result["kernels"] if k["name"].startswith("matmul ")]
            self.assertTrue(names, id)
            versions = {re.search(r" by (cuBLASLt [0-9.]+) \(", name) for name in names}
            found |= {match[1] if match else "own" for match in versions}
        return found

    def test_projections_are_by_cublaslt_where_it_is_found_and_else_by_the_own_kernel(self):
        default = self.multipliers()
        self.assertEqual(len(default), 1, default)
        if default == {"own"}:
            print("cuBLASLt was not found: only the own kernel was looked at")
        # Of prompts this backend has no graph.
        self.assertEqual(self.multipliers("--set", "timing.mode=graph", "--filter", "/40q1s33"), default)
        self.assertEqual(self.multipliers("--no-cublaslt"), {"own"})
        self.assertEqual(self.multipliers("--set", "attention.batch_invariant=true"), {"own"})

    def test_two_kernels_of_a_backend_are_timed_in_turns(self):
        names = ["FLASH_ATTN@prefill", "FLASH_ATTN@general"]
        results = self.run_on_gpu("--set", "timing.order=alternate", "--filter", "/q32_4q1s100/",
                                  *(part for name in names for part in ("--backend", name)))  # fmt: skip
        self.assertEqual([backend for _, backend in results], names)
        for (_, name), result in results.items():
            kernel = name.split("@")[1]
            self.assertEqual(result["status"], "passed", result["reasons"])
            self.assertEqual(result["forced_kernel"], kernel)
            self.assertEqual(result["timing"]["peers"], names)
            launched = [info["name"].split(" ")[0] for info in result["kernels"]]
            self.assertIn(kernel, launched)
            self.assertEqual({"prefill", "general"} & set(launched), {kernel})

    def test_a_case_that_the_forced_kernel_does_not_fit_is_refused_with_its_reason(self):
        results = self.run_on_gpu("--kernel", "f32", "--backend", "FLASH_ATTN", code=3)
        for result in results.values():
            self.assertEqual(result["status"], "unsupported")
            self.assertRegex(result["reasons"][0], r"^kernel f32 cannot do attend\w*: bf16 queries")

    def test_graphs_are_timed_too(self):
        for result in self.run_on_gpu("--set", "timing.mode=graph").values():
            self.assertEqual(result["timing"]["mode"], "graph")

    def test_an_a_a_run_shows_the_noise_floor_in_the_table_and_in_the_result(self):
        self.write("tiny.yaml", CASES)
        outcome = self.expect(0, "run", "tiny.yaml", "--device", "cuda", "--cache-dir", "cache",
                              "--save-baseline", "b.json")  # fmt: skip
        self.assertIn("A/A, 2 runs: noise floor", outcome.out)
        file = json.loads((self.dir / "b.json").read_text())
        self.assertEqual(set(file["noise_floor"]["cases"]), {r["id"] for r in file["results"]})

    def scales_on(self, device, *arguments):
        """Every scale that calibrating on the device writes, by its path in the file."""
        self.expect(0, "calibrate", *arguments, "--device", device, "--output", "scales.json",
                    "--force", "-q")  # fmt: skip
        found = {}

        def walk(value, path):
            if isinstance(value, dict):
                for key, item in value.items():
                    walk(item, (*path, key))
            elif isinstance(value, float):
                found[path] = value

        walk(strict_json((self.dir / "scales.json").read_text()), ())
        return found

    def test_scales_of_the_gpu_are_those_of_the_cpu_to_one_ulp(self):
        self.write("mm.yaml", MM_ENCODER)
        real = ["--tensors", ROOT / "tests" / "data" / "reaction-encoder.safetensors"]
        dtypes = [["mm.yaml", "--set", f"attention.dtype={dtype}"]
                  for dtype in ("bfloat16", "float16", "float32")]  # fmt: skip
        signed = [[*source, "--amax", "signed"] for source in (real, *dtypes)]
        for arguments in (
            real,
            *dtypes,
            *signed,
            [*real, "--format", "kv-cache"],
            [*dtypes[2], "--history", "16"],
            [*dtypes[2], "--set", "inputs.distribution=outlier"],
        ):
            with self.subTest(arguments):
                on_cpu = self.scales_on("cpu", *arguments, "--margin", "1")
                on_gpu = self.scales_on("cuda", *arguments, "--margin", "1")
                self.assertEqual(on_gpu.keys(), on_cpu.keys())
                self.assertGreater(len(on_cpu), 2)
                for path, scale in on_cpu.items():
                    ulps = float_bits(on_gpu[path]) - float_bits(scale)
                    self.assertLessEqual(abs(ulps), 1, (path, on_gpu[path], scale))

    def test_the_cpu_and_the_gpu_agree(self):
        self.write("tiny.yaml", CASES)
        for device in ("cpu", "cuda"):
            self.expect(0, "run", "tiny.yaml", "--device", device, "--no-timing",
                        "--cache-dir", "cache", "--json", f"{device}.json")  # fmt: skip
        outcome = self.expect(0, "gate", "--agreement", "cpu.json", "cuda.json")
        self.assertIn("the devices agree", outcome.out)


if __name__ == "__main__":
    unittest.main()
