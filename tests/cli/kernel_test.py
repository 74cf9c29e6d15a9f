"""--kernel, BACKEND@KERNEL and the list of kernels that explain prints, without a GPU."""

import json
import re
import unittest

from tool import TINY, TINY_CASE, ToolTest

NAMES = ["f32", "decode", "hopper_prefill", "prefill", "hopper_latent", "hopper_latent_codes",
         "hopper_gathered", "hopper_tiles", "general"]
# Many rows of each KV head: what the prefill kernel is for.
PROMPTS = TINY.replace(TINY_CASE, "2q300")


def candidates(text):
    """(operation, kernel) -> what explain says about it; kernels that it says the same of share a line."""
    found = {}
    for operation, lines in re.findall(r"(?m)^kernels for (\w+) of .+\n((?:  .+\n)+)", text):
        for names, verdict in re.findall(r"(?m)^  (\w+(?:, \w+)*) +(.+)$", lines):
            found |= {(operation, name): verdict for name in names.split(", ")}
    return found


class Kernel(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", TINY)
        self.write("prompts.yaml", PROMPTS)

    def test_explain_lists_every_kernel_in_order_with_the_reason_of_each(self):
        found = candidates(self.expect(0, "explain", "prompts.yaml", "-v", "--backend", "FLASH_ATTN").out)
        self.assertEqual([kernel for _, kernel in found], NAMES)
        out = self.expect(0, "explain", "prompts.yaml", "--backend", "FLASH_ATTN").out
        self.assertEqual(candidates(out), found)
        self.assertRegex(out, "(?m)^  prefill, general +fits, not first$")
        self.assertEqual(found["attend", "f32"], "does not fit: bf16 queries: it is for f32")
        self.assertRegex(found["attend", "decode"], r"^fits, not first choice: 600 query rows ")
        self.assertEqual(found["attend", "hopper_prefill"], "chosen")
        self.assertEqual(found["attend", "prefill"], "fits, not first")
        self.assertEqual(found["attend", "general"], "fits, not first")

    def test_explain_goes_by_the_capability_that_is_assumed(self):
        wide = ["--set", "attention.head_size=640", "--backend", "TRITON_ATTN", "--set",
                "attention.dtype=float32"]  # fmt: skip
        for sm, verdict in (("90", "chosen"), ("86", "does not fit: attend of head_size 640")):
            out = self.expect(0, "explain", "prompts.yaml", "--assume-sm", sm, *wide).out
            self.assertTrue(candidates(out)["attend", "general"].startswith(verdict), out)

    def test_explain_says_where_decodes_have_a_call_of_their_own(self):
        self.write("mixed.yaml", TINY.replace(TINY_CASE, "4q1s16k_q300"))
        mixed = ("explain", "mixed.yaml", "--backend", "FLASH_ATTN", "--device", "cpu", "--set",
                 "kv_cache.dtype=fp8_e4m3")  # fmt: skip
        for more, calls in ((("--assume-sm", "90"), {"attend_splits", "attend"}),
                            (("--set", "attention.num_splits=1"), {"attend"})):  # fmt: skip
            out = self.expect(0, *mixed, *more).out
            self.assertRegex(out, "(?m)^  path +one varlen call$")
            found = re.findall(r"(?m)^  path on SM 9.0 +decode and prefill calls$", out)
            self.assertEqual(len(found), len(calls) - 1, out)
            self.assertEqual({operation for operation, _ in candidates(out)}, calls)

    def test_work_is_divided_among_the_multiprocessors_that_are_assumed(self):
        self.write("decode.yaml", TINY.replace(TINY_CASE, "4q1s16k"))
        splits = []
        for options in ([], ["--assume-num-sms", "132"], ["--assume-num-sms", "16"]):
            out = self.expect(0, "explain", "decode.yaml", "--backend", "FLASH_ATTN", *options).out
            splits.append(int(re.search(r"num_splits +(\d+)", out)[1]))
        self.assertEqual(splits[0], splits[1])
        self.assertLess(splits[2], splits[1])
        few = self.results("decode.yaml", "--device", "cpu", "--no-timing", "--backend",
                           "FLASH_ATTN", "--assume-num-sms", "16")  # fmt: skip
        result = next(iter(few.values()))
        self.assertEqual(result["status"], "passed")
        self.assertIn("--assume-num-sms 16", result["repro"])
        self.expect(2, "explain", "decode.yaml", "--assume-num-sms", "0")

    def test_the_cpu_has_no_kernels_to_choose_from(self):
        for options in (["--backend", "FLASH_ATTN@general"],
                        ["--backend", "FLASH_ATTN", "--kernel", "general"]):  # fmt: skip
            results = self.results("tiny.yaml", "--device", "cpu", *options, code=3)
            (identity, result), = results.items()
            self.assertEqual(identity, f"tiny/{TINY_CASE}/FLASH_ATTN@general")
            self.assertEqual(result["backend"], "FLASH_ATTN@general")
            self.assertEqual(result["forced_kernel"], "general")
            self.assertEqual(result["status"], "unsupported")
            self.assertEqual(result["reasons"],
                             ["kernel general: the CPU has no kernels to choose from"])

    def test_a_result_without_a_forced_kernel_says_nothing_of_one(self):
        for result in self.results("tiny.yaml", "--device", "cpu", "--no-timing").values():
            self.assertNotIn("forced_kernel", result)
            self.assertNotIn("@", result["id"])

    def test_the_command_that_repeats_a_result_has_the_kernel(self):
        results = self.results("tiny.yaml", "--device", "cpu", "--kernel", "general",
                               "--backend", "FLASH_ATTN", code=3)  # fmt: skip
        repro = next(iter(results.values()))["repro"]
        self.assertIn("--backend FLASH_ATTN --kernel general", repro.replace("--device cpu ", ""))
        self.assertIn("FLASH_ATTN@general", repro)

    def test_an_unknown_kernel_is_bad_usage_and_the_kernels_are_listed(self):
        for options in (["--kernel", "prefil"], ["--backend", "FLASH_ATTN@prefil"]):
            for command in ("run", "explain", "support", "compile"):
                err = self.expect(2, command, "tiny.yaml", *options).err
                self.assertIn("unknown kernel 'prefil'", err)
                self.assertIn("did you mean 'prefill'", err)
                self.assertIn("known: " + ", ".join(NAMES), err)

    def test_an_unknown_backend_with_a_kernel_is_still_an_unknown_backend(self):
        err = self.expect(2, "run", "tiny.yaml", "--backend", "FLASH@prefill").err
        self.assertIn("unknown backend 'FLASH@prefill'", err)

    def test_two_kernels_for_one_case_are_bad_usage(self):
        err = self.expect(2, "run", "tiny.yaml", "--kernel", "general", "--backend",
                          "FLASH_ATTN@prefill").err  # fmt: skip
        self.assertIn("--kernel general: the backend FLASH_ATTN@prefill names a kernel", err)

    def test_a_scenario_may_name_backends_with_kernels(self):
        both = "backends: [FLASH_ATTN@prefill, FLASH_ATTN@general]\n"
        self.write("both.yaml", PROMPTS + both)
        self.expect(0, "validate", "both.yaml")
        results = self.results("both.yaml", "--device", "cpu", code=3)
        self.assertEqual([result["backend"] for result in results.values()],
                         ["FLASH_ATTN@prefill", "FLASH_ATTN@general"])
        one = self.results("both.yaml", "--device", "cpu", "--filter", "@general$", code=3)
        self.assertEqual([result["forced_kernel"] for result in one.values()], ["general"])
        matrix = json.loads(self.expect(3, "support", "both.yaml", "--device", "cpu", "--json",
                                        "-").out)  # fmt: skip
        self.assertEqual([row["backend"] for row in matrix],
                         ["FLASH_ATTN@prefill", "FLASH_ATTN@general"])
        self.write("bad.yaml", PROMPTS + "backends: [FLASH_ATTN@nothing]\n")
        err = self.expect(2, "validate", "bad.yaml").err
        self.assertIn("bad.yaml:6", err)
        self.assertIn("unknown kernel 'nothing'", err)

    def test_compile_takes_the_forced_kernel_and_leaves_the_others_as_they_are(self):
        listed = {}
        for kernel in ("", "hopper_prefill", "prefill", "general"):
            options = ["--kernel", kernel] if kernel else []
            out = self.expect(0, "compile", "prompts.yaml", "--list", "--arch", "sm_90a",
                              "--backend", "FLASH_ATTN", *options).out  # fmt: skip
            listed[kernel] = out.splitlines()[1:]
        self.assertEqual(listed["hopper_prefill"], listed[""])
        self.assertTrue(any(name.startswith("prefill d64") for name in listed["prefill"]))
        self.assertTrue(any(name.startswith("general d64") for name in listed["general"]))
        self.assertFalse(any(name.startswith("prefill") for name in listed["general"]))
        self.assertIn("write_cache", " ".join(listed["general"]))

    def test_a_kernel_takes_the_options_behind_its_name(self):
        def listed(kernel):
            out = self.expect(0, "compile", "prompts.yaml", "--list", "--arch", "sm_90a",
                              "--backend", "FLASH_ATTN@" + kernel).out  # fmt: skip
            return [line for line in out.splitlines() if line.startswith("hopper_prefill")]
        self.assertEqual(listed("hopper_prefill"), ["hopper_prefill d64 bf16 paged 16 192x64"])
        self.assertEqual(listed("hopper_prefill:consumers=2:tile_n=128"),
                         ["hopper_prefill d64 bf16 paged 16 128x128"])
        name = "FLASH_ATTN@hopper_prefill:stages=3"
        results = self.results("prompts.yaml", "--device", "cpu", "--backend", name, code=3)
        self.assertEqual([result["backend"] for result in results.values()], [name])
        for wrong, message in (("hopper_prefill:stages=9", "stages=9: 2 to 4 is possible"),
                               ("hopper_prefill:size=9", "'size=9' is no option=number of it"),
                               ("prefill:stages=3", "kernel prefill: it has no options")):
            err = self.expect(2, "explain", "prompts.yaml", "--kernel", wrong).err
            self.assertIn(message, err)

    def test_compile_refuses_the_cases_that_the_kernel_does_not_fit(self):
        self.write("odd.yaml", PROMPTS.replace("head_size: 64", "head_size: 92"))
        self.expect(0, "compile", "odd.yaml", "--list", "--arch", "sm_90a", "--backend",
                    "TRITON_ATTN@general")  # fmt: skip
        err = self.expect(3, "compile", "odd.yaml", "--list", "--arch", "sm_90a", "--backend",
                          "TRITON_ATTN@prefill").err  # fmt: skip
        self.assertIn("1 of 1 case-backend pairs are unsupported on sm_90a", err)

    def test_explain_says_what_became_of_the_forced_kernel(self):
        out = self.expect(0, "explain", "prompts.yaml", "--backend", "FLASH_ATTN@general").out
        self.assertIn("backend FLASH_ATTN@general\n", out)
        self.assertIn("unsupported: kernel general: the CPU has no kernels to choose from", out)
        found = candidates(out)
        self.assertEqual(found["attend", "general"], "forced")
        self.assertEqual(found["attend", "prefill"], "fits, not first")

    def test_what_does_not_run_this_programs_kernels_cannot_be_held_to_one(self):
        results = self.results("tiny.yaml", "--device", "cpu", "--backend", "REFERENCE@general",
                               code=3)  # fmt: skip
        self.assertEqual(next(iter(results.values()))["reasons"],
                         ["kernel general: REFERENCE does not run this program's attention "
                          "kernels"])  # fmt: skip

    def test_the_reference_has_no_kernels_to_list(self):
        out = self.expect(0, "explain", "prompts.yaml", "--backend", "REFERENCE").out
        self.assertEqual(candidates(out), {})


if __name__ == "__main__":
    unittest.main()
