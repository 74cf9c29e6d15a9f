"""attnbench compile and --device on a machine that need not have a GPU."""

import concurrent.futures
import shutil
import unittest

from tool import ROOT, TINY, ToolTest, strict_json

# Its kernels take a twentieth of a second each.
MERGE = """schema: 1
name: merge
attention: {type: op, num_heads: 4, head_size: 64, dtype: bfloat16}
op: {name: merge, tokens: 8}
"""


class Compile(ToolTest):
    def test_an_unknown_architecture_is_bad_usage(self):
        self.write("tiny.yaml", TINY)
        for arch in ("90", "hopper", "sm_"):
            outcome = self.expect(2, "compile", "tiny.yaml", "--arch", arch)
            self.assertIn("--arch", outcome.err)

    def test_what_is_unsupported_everywhere_compiles_nothing(self):
        self.write("nvfp4.yaml", TINY + "output_quant: {type: nvfp4}\n")
        self.expect(3, "compile", "nvfp4.yaml", "--arch", "sm_80", "--cache-dir", "cache")
        self.assertNotIn("cache", self.files())

    def test_a_list_names_the_kernels_of_any_size_and_compiles_nothing(self):
        # Keys and values of 130 GB.
        self.write("huge.yaml", TINY.replace("4q1s100", "64q1s4000k"))
        outcome = self.expect(0, "compile", "huge.yaml", "--list",
                              "--set", "kv_cache.block_size=256", "--arch", "sm_90a",
                              "--arch", "sm_80", "--cache-dir", "cache")  # fmt: skip
        for arch in ("sm_90a", "sm_80"):
            self.assertRegex(outcome.out, rf"(?m)^{arch}: [1-9]\d* kernels$")
        self.assertRegex(outcome.out, r"(?m)^write_cache bf16")
        self.assertNotIn("cache", self.files())

    def test_the_kernels_of_the_request_that_is_repeated_alone_are_listed_too(self):
        # The batch is of chunks of prefill and one long decode, and only that is cut into parts.
        self.write("mixed.yaml", TINY.replace("4q1s100", "4q64s128_q1s64k"))
        self.write("decode.yaml", TINY.replace("q32_4q1s100", "q1s64k"))
        listed = [
            set(self.expect(0, "compile", name, "--list", "--arch", "sm_90a").out.splitlines()[1:])
            for name in ("mixed.yaml", "decode.yaml")
        ]
        self.assertEqual(listed[1] - listed[0], set())

    def test_kernels_of_a_folder_are_named_in_the_result_and_make_it_another_machines(self):
        self.write("tiny.yaml", TINY)
        run = ("run", "tiny.yaml", "--device", "cpu", "--no-timing", "--backend", "FLASH_ATTN", "--json", "-")
        own = strict_json(self.expect(0, *run).out)
        folder = str(ROOT / "kernels")
        other = strict_json(self.expect(0, *run, ATTNBENCH_KERNEL_DIR=folder).out)
        self.assertEqual(other["tool"]["git"],
                         f"{own['tool']['git']} with kernels of {folder} (ATTNBENCH_KERNEL_DIR)")  # fmt: skip
        self.assertNotEqual(other["environment"]["fingerprint"], own["environment"]["fingerprint"])

    def test_kernels_are_compiled_from_the_folder_that_the_environment_names(self):
        self.write("tiny.yaml", TINY)
        compile_it = ("compile", "tiny.yaml", "--backend", "FLASH_ATTN", "--arch", "sm_90a", "--cache-dir",
                      "cache")  # fmt: skip
        outcome = self.tool(*compile_it, "--list")
        self.assertRegex(outcome.out, r"(?m)^write_cache bf16")
        shutil.copytree(ROOT / "kernels", self.dir / "mine")
        self.write("mine/cache/write_cache.cuh", "#error a fault of mine\n")
        folder = str(self.dir / "mine")
        outcome = self.tool(*compile_it, ATTNBENCH_KERNEL_DIR=folder)
        if "NVRTC not found" in outcome.err:
            self.skipTest("no NVRTC")
        self.assertEqual(outcome.code, 4)
        self.assertIn("a fault of mine", outcome.err)
        missing = self.expect(2, *compile_it, ATTNBENCH_KERNEL_DIR=str(self.dir / "none"))
        self.assertIn("none: ATTNBENCH_KERNEL_DIR names no folder of device files", missing.err)

    def test_kernels_that_check_and_measure_are_listed_where_a_case_can_run(self):
        self.write("tiny.yaml", TINY)
        self.write("nvfp4.yaml", TINY + "output_quant: {type: nvfp4}\n")
        listed = self.expect(0, "compile", "tiny.yaml", "--list", "--arch", "sm_90a").out.splitlines()
        for name in ("guard zones", "clock", "digest of a sample", "read"):
            self.assertEqual(listed.count(name), 1, name)
        refused = self.expect(3, "compile", "nvfp4.yaml", "--list", "--arch", "sm_80")
        self.assertEqual(refused.out, "sm_80: 0 kernels\n")

    def compiled(self, *arguments):
        outcome = self.tool("compile", *arguments)
        if "NVRTC not found" in outcome.err:
            self.skipTest("no NVRTC")
        self.assertEqual(outcome.code, 0, outcome.err)
        return [line.split()[-1] for line in outcome.out.splitlines()[2:]]

    def test_two_that_share_a_folder_do_not_compile_a_kernel_twice(self):
        self.write("merge.yaml", MERGE)
        arguments = ("merge.yaml", "--arch", "sm_80", "--cache-dir", "cache")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            both = list(pool.map(lambda jobs: self.compiled(*arguments, "--compile-jobs", jobs), ("1", "2")))
        for kernel in zip(*both):
            self.assertEqual(sorted(kernel), ["cached", "compiled"])
        self.assertEqual(len(list((self.dir / "cache").iterdir())), len(both[0]))  # and no claim

    def test_a_folder_left_by_a_compilation_that_was_killed_is_filled(self):
        self.write("merge.yaml", MERGE)
        arguments = ("merge.yaml", "--arch", "sm_80", "--cache-dir", "cache")
        self.compiled(*arguments)
        entries = sorted((self.dir / "cache").iterdir())
        for entry in entries:
            shutil.rmtree(entry)
            (self.dir / "cache" / f".claim-{entry.name}").write_text("1")  # of a process that is gone
        self.assertEqual(set(self.compiled(*arguments)), {"compiled"})
        self.assertEqual(sorted((self.dir / "cache").iterdir()), entries)

    def test_a_number_of_kernels_at_a_time_is_checked(self):
        self.write("tiny.yaml", TINY)
        for wrong in ("0", "-1", "many"):
            self.assertIn("--compile-jobs", self.expect(2, "compile", "tiny.yaml", "--compile-jobs", wrong).err)
        self.expect(2, "run", "tiny.yaml", "--compile-jobs", "-1")
        self.expect(0, "run", "tiny.yaml", "--device", "cpu", "--compile-jobs", "0", "--no-timing")

    def test_a_device_number_that_is_not_there_is_named(self):
        self.write("tiny.yaml", TINY)
        for result in self.results("tiny.yaml", "--device", "cuda:99", code=3).values():
            self.assertEqual(result["device"], "cuda:99")
            self.assertEqual(result["status"], "unsupported")
            self.assertTrue(result["reasons"][0].startswith("no CUDA device"))


if __name__ == "__main__":
    unittest.main()
