"""The table of CUDA mutants: every fault can be planted. That they compile and are caught takes NVRTC and a
GPU: scripts/cuda_mutants.py."""

import unittest

import cuda_mutants


class Table(unittest.TestCase):
    def setUp(self):
        self.cases, self.mutants = cuda_mutants.load_table()

    def test_the_text_of_every_mutant_is_there_once_and_becomes_another(self):
        for mutant in self.mutants:
            original = (cuda_mutants.KERNELS / mutant["file"]).read_text()
            self.assertNotEqual(cuda_mutants.mutated_text(mutant), original, mutant["name"])

    def test_names_are_unique_and_every_case_is_there_and_used(self):
        names = [mutant["name"] for mutant in self.mutants]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual({mutant["case"] for mutant in self.mutants}, set(self.cases))

    def test_every_family_of_kernels_that_computes_has_some(self):
        folders = {mutant["file"].split("/")[0] for mutant in self.mutants}
        self.assertLessEqual({"attention", "cache", "common", "merge", "quantise"}, folders)
        files = {mutant["file"].split("/")[-1] for mutant in self.mutants}
        kernels = {"prefill.cuh", "decode.cuh", "general.cuh", "f32.cuh", "combine.cuh", "softmax.cuh"}
        self.assertLessEqual(kernels, files)

    def test_a_survivor_and_an_unsupported_case_are_no_catch(self):
        judge = cuda_mutants.judge
        self.assertEqual(judge([("incorrect", "off"), ("error", "")], cuda_mutants.CAUGHT)[0], "caught")
        self.assertEqual(judge([("incorrect", ""), ("passed", "")], cuda_mutants.CAUGHT)[0], "SURVIVED")
        self.assertEqual(judge([("unsupported", "")], cuda_mutants.CAUGHT)[0], "SURVIVED")


if __name__ == "__main__":
    unittest.main()
