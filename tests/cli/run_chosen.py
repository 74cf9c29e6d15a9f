"""Runs those tests of a file that are marked as thorough (tool.thorough), or all others:

    run_chosen.py quick|thorough FILE

ctest does both, under labels of their own; FILE by itself runs all of its tests."""

import importlib
import sys
import unittest
from pathlib import Path

from tool import is_thorough


def tests_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def chosen_of(file, which):
    """The tests of a file that are `which`: quick or thorough."""
    sys.path.insert(0, str(file.parent))
    loaded = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(file.stem))
    return [test for test in tests_of(loaded) if is_thorough(test) == (which == "thorough")]


def main(which, file):
    chosen = chosen_of(Path(file).resolve(), which)
    if not chosen:
        print(f"{file}: no test is {which}", file=sys.stderr)
        return 1
    done = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(chosen))
    return 0 if done.wasSuccessful() else 1


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("quick", "thorough"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
