"""Libraries that were compiled with the header of version 1 of the plugin interface
(tests/plugins/version1) run as they did, and get nothing that version 2 brought."""

import re
import sys
import unittest

from plugin_mla_test import LATENTS
from plugin_ops_test import CACHE, FP8_MERGE, MERGE
from plugins import PLUGINS, PluginTest
from tool import ROOT, words_only

OPERATIONS = PLUGINS / "libop_version1_plugin.so"
MLA = PLUGINS / "libmla_version1_plugin.so"
HEADERS = (ROOT / "tests/plugins/version1", ROOT / "src/plugin")


class Version1(PluginTest):
    def test_the_headers_are_of_two_versions(self):
        found = [re.search(r"ATTNBENCH_ABI_VERSION (\d)u", (folder / "attnbench_backend.h").read_text())
                 for folder in HEADERS]  # fmt: skip
        self.assertEqual([match[1] for match in found], ["1", "2"])

    def test_operations_of_an_old_library_run_and_are_judged(self):
        for text in (CACHE, MERGE, FP8_MERGE):
            results = self.run_plugin(text, OPERATIONS, "--backend", "OPS", "--backend", "RIGHT")
            self.assertEqual({name: r["status"] for name, r in results.items()},
                             {"OPS": "passed", "RIGHT": "passed"})  # fmt: skip
        wrong = self.run_plugin(CACHE, OPERATIONS, "--backend", "SLOT_OFF_BY_ONE", "--no-timing", code=1)
        self.assertEqual(wrong["SLOT_OFF_BY_ONE"]["status"], "incorrect")

    def test_attention_over_latents_of_an_old_library(self):
        results = self.run_plugin(LATENTS, MLA, "--backend", "RIGHT")
        self.assertEqual(results["RIGHT"]["status"], "passed", results["RIGHT"]["reasons"])

    def test_what_is_newer_is_unsupported_and_not_wrong(self):
        for setting, reason in (
            ("op.name=rope", "operation rope not supported"),
            ("dcp.world_size=2", "needs ATTNBENCH_DCP, which the plugin does not declare"),
        ):
            result = self.run_plugin(CACHE, OPERATIONS, "--backend", "RIGHT", "--no-timing",
                                     "--set", setting, code=3)["RIGHT"]  # fmt: skip
            self.assertEqual(words_only(result["reasons"]), [reason])


if __name__ == "__main__":
    sys.exit(unittest.main())
