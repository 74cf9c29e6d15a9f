"""A baseline of real results that tests of the gate change as they like."""

import copy
import json

from timings import retime
from tool import TINY, TINY_CASE, ToolTest, strict_json

PAIR = ("--backend", "FLASH_ATTN", "--backend", "TRITON_ATTN")
SLOW_ID = f"tiny/{TINY_CASE}/FLASH_ATTN"


def steady(median_us):
    """Twenty samples a tenth of a percent around a median."""
    return [median_us * (1 + 0.0001 * (i - 9.5)) for i in range(20)]


class TimedTest(ToolTest):
    """Tests that begin with the results of a timed run, which is made once for all of them."""

    ran = None  # the text of its file

    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", TINY)

    def timed(self):
        """What the run of PAIR wrote."""
        if TimedTest.ran is None:
            self.expect(0, "run", "tiny.yaml", *PAIR, "--json", "real.json")
            TimedTest.ran = (self.dir / "real.json").read_text()
            (self.dir / "real.json").unlink()
        return json.loads(TimedTest.ran)


class GateFiles(TimedTest):
    """A baseline of two results, base.json, and copies of it that were changed."""

    def setUp(self):
        super().setUp()
        self.file = self.timed()
        for result in self.file["results"]:
            retime(result, steady(100.0))
        self.save("base.json", self.file)

    def save(self, name, file):
        return self.write(name, json.dumps(file))

    def changed(self, change):
        """A copy of the baseline file, changed, as new.json."""
        file = copy.deepcopy(self.file)
        change(file)
        self.save("new.json", file)
        return file

    def gate(self, code, *arguments):
        outcome = self.expect(code, "gate", "base.json", "new.json", "--json", "v.json", *arguments)
        verdicts = strict_json((self.dir / "v.json").read_text())
        return outcome, {verdict["id"]: verdict for verdict in verdicts["verdicts"]}

    @staticmethod
    def time(index, median_us):
        return lambda file: retime(file["results"][index], steady(median_us))
