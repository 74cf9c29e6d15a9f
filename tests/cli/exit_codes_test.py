"""Exit codes of contract section 3, on the real binary."""

import unittest

from tool import TINY, ToolTest

# More bytes than any machine can address.
TOO_LARGE = """\
schema: 1
name: huge
attention: {type: decoder, num_heads: 4096, num_kv_heads: 4096, head_size: 256, dtype: float32}
batch: q1s1000000k
"""
# float32 is a model dtype that the FLASH_ATTN family refuses and TRITON_ATTN takes.
FLOAT32 = TINY.replace("bfloat16", "float32")


class ExitCodes(ToolTest):
    def test_a_batch_without_new_tokens_is_timed_gated_and_explained(self):
        for keys in (0, 20):
            batch = f"batch=[{{count: 3, query_len: 0, seq_len: {keys}}}]"
            with self.subTest(keys=keys):
                self.write("tiny.yaml", TINY)
                self.expect(0, "run", "tiny.yaml", "--device", "cpu", "--samples", "3", "--set", batch)
                self.expect(0, "run", "tiny.yaml", "--device", "cpu", "--no-timing", "--set", batch,
                            "--json", "z.json")  # fmt: skip
                self.expect(0, "gate", "z.json", "z.json")
                self.assertNotIn("contradicts", self.expect(0, "report", "z.json").out)
                self.expect(0, "explain", "tiny.yaml", "--device", "cpu", "--set", batch)

    def test_3_when_no_case_is_in_the_baseline(self):
        self.write("tiny.yaml", TINY)
        self.expect(0, "run", "tiny.yaml", "--no-timing", "--json", "a.json")
        self.write("tiny.yaml", TINY.replace("name: ", "name: other-"))
        outcome = self.expect(3, "run", "tiny.yaml", "--no-timing", "--baseline", "a.json", "--lenient")
        self.assertIn("no case was compared", outcome.out)
        self.assertNotIn("gate passed", outcome.out)

    def test_samples_that_the_time_limit_cuts_are_told(self):
        self.write("tiny.yaml", TINY)
        cut = ("run", "tiny.yaml", "--backend", "FLASH_ATTN", "--samples", "5000", "--timeout", "0.001")
        self.assertRegex(self.expect(0, *cut).err, r"FLASH_ATTN: \d+ of 5000 samples, as timing.timeout_s "
                                                   r"0.001 allows")  # fmt: skip
        self.assertEqual(self.expect(0, *cut, "-q").err, "")
        whole = self.expect(0, "run", "tiny.yaml", "--backend", "FLASH_ATTN", "--samples", "3")
        self.assertNotIn("samples", whole.err)

    def test_0_when_everything_that_ran_passed(self):
        self.write("tiny.yaml", TINY)
        self.expect(0, "run", "tiny.yaml")

    def test_0_when_a_default_backend_is_unsupported_beside_one_that_passed(self):
        self.write("tiny.yaml", FLOAT32)
        results = self.results("tiny.yaml", "--no-timing")
        statuses = {result["status"] for result in results.values()}
        self.assertEqual(statuses, {"passed", "unsupported"})

    def test_0_when_unverified(self):
        self.write("tiny.yaml", TINY)
        results = self.results("tiny.yaml", "--no-validation")
        self.assertEqual({result["status"] for result in results.values()}, {"unverified"})

    def test_2_on_bad_usage(self):
        self.write("tiny.yaml", TINY)
        for arguments in (
            [],
            ["run"],
            ["runn", "tiny.yaml"],
            ["gate", "a.json", "b.json"],
            ["run", "tiny.yaml", "--no-such-option"],
            ["run", "tiny.yaml", "--backend", "FLASH_ATN"],
            ["run", "tiny.yaml", "--device", "tpu"],
            ["run", "tiny.yaml", "--filter", "(["],
            ["run", "tiny.yaml", "--part", "0/2"],
            ["run", "tiny.yaml", "--part", "3/2"],
            ["run", "tiny.yaml", "--part", "1"],
            ["run", "tiny.yaml", "--set", "attention.head_size"],
            ["run", "tiny.yaml", "--seed", "-1"],
            ["run", "tiny.yaml", "--samples", "0"],
            ["run", "tiny.yaml", "--timeout", "0"],
            ["run", "tiny.yaml", "--color", "sometimes"],
            ["run", "tiny.yaml", "--save", "always"],
            ["run", "tiny.yaml", "-q", "-v"],
            ["run", "tiny.yaml", "--json", "-", "--csv", "-"],
            ["run", "tiny.yaml", "--json", "a", "--csv", "./a"],
            ["run", "tiny.yaml", "tiny.yaml"],
            ["run", "nowhere.yaml"],
            ["explain"],
            ["list", "nonsense"],
        ):
            with self.subTest(arguments=arguments):
                outcome = self.expect(2, *arguments)
                self.assertEqual(outcome.out, "")
                self.assertTrue(outcome.err.startswith("attnbench: "), outcome.err)
                self.assertEqual(outcome.err.count("\n"), 1, outcome.err)
        self.assertEqual(self.files(), ["tiny.yaml"])

    def test_a_mistyped_backend_or_command_is_answered_with_the_nearest_name(self):
        self.write("tiny.yaml", TINY)
        outcome = self.expect(2, "run", "tiny.yaml", "--backend", "FLASH_ATN")
        self.assertIn("did you mean 'FLASH_ATTN'?", outcome.err)
        outcome = self.expect(2, "suport", "tiny.yaml")
        self.assertIn("did you mean 'support'?", outcome.err)
        for name in ("run", "support", "explain", "validate", "list"):
            self.assertIn(name, outcome.err)
        self.assertIn("did you mean 'run'?", self.expect(2, "rnu", "tiny.yaml").err)

    def test_3_when_everything_is_unsupported(self):
        self.write("tiny.yaml", FLOAT32)
        self.expect(3, "run", "tiny.yaml", "--backend", "FLASH_ATTN")

    def test_3_when_everything_is_filtered_out(self):
        self.write("tiny.yaml", TINY)
        self.assertEqual(self.results("tiny.yaml", "--filter", "no-such-case", code=3), {})

    def test_3_when_a_named_backend_is_unsupported_in_every_case(self):
        self.write("tiny.yaml", FLOAT32)
        self.expect(
            3, "run", "tiny.yaml", "--backend", "TRITON_ATTN", "--backend", "FLASH_ATTN"
        )

    def test_3_on_a_device_that_is_not_there(self):
        self.write("tiny.yaml", TINY)
        for result in self.results("tiny.yaml", "--device", "cuda", code=3).values():
            self.assertEqual(result["status"], "unsupported")
            self.assertIn("CUDA", result["reasons"][0])
            self.assertEqual(result["device"], "cuda:0")

    def test_4_when_a_case_needs_more_memory_than_there_is(self):
        self.write("huge.yaml", TOO_LARGE)
        results = self.results("huge.yaml", "--backend", "TRITON_ATTN", code=4)
        self.assertEqual([result["status"] for result in results.values()], ["error"])
        self.assertTrue(all(result["reasons"] for result in results.values()))

    def test_4_wins_over_3(self):
        self.write("huge.yaml", TOO_LARGE)
        self.write("tiny.yaml", FLOAT32)
        self.expect(4, "run", "huge.yaml", "tiny.yaml", "--filter", "huge.*TRITON|FLASH_ATTN$")

    def test_support_is_3_when_nothing_is_supported(self):
        self.write("tiny.yaml", FLOAT32)
        self.expect(0, "support", "tiny.yaml")
        self.expect(3, "support", "tiny.yaml", "--backend", "FLASH_ATTN")

    def test_parts_are_all_results_and_cases_with_the_same_inputs_stay_together(self):
        self.write("sweep.yaml", TINY + "sweep: {inputs.seed: [1, 2, 3], "
                                        "cascade.mode: [never, auto]}\n")  # fmt: skip
        whole = self.results("sweep.yaml", "--no-timing")
        parts = [self.results("sweep.yaml", "--no-timing", "--part", f"{k}/2") for k in (1, 2)]
        self.assertEqual(sorted([*parts[0], *parts[1]]), sorted(whole))
        for seed in (1, 2, 3):
            held = [any(f"seed={seed}," in id for id in part) for part in parts]
            self.assertEqual(sum(held), 1, f"seed {seed} in {held}")
        for part in parts:
            for id, result in part.items():
                for name in ("status", "error"):
                    self.assertEqual(result[name], whole[id][name], id)


if __name__ == "__main__":
    unittest.main()
