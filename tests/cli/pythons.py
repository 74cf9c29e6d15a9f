"""What the tests of Python classes as backends share: an interpreter that can be embedded, and runs with
classes of a scratch folder.
"""

import os
import subprocess
import sys
import unittest

from plugins import PluginTest
from tool import ROOT, TIME_LIMIT_S, skip_without

PACKAGE_DIR = ROOT / "python"
STUBS = ROOT / "tests" / "python" / "stubs"
FAKE_TORCH = ROOT / "tests" / "python" / "fake_torch"
CANDIDATES = (sys.executable, "python3", "/usr/bin/python3")


def described(python):
    """What describe.py says of an interpreter, by key; empty for one that does not run."""
    try:
        done = subprocess.run([python, PACKAGE_DIR / "attnbench" / "describe.py"], text=True,
                              capture_output=True, timeout=TIME_LIMIT_S)  # fmt: skip
    except OSError:
        return {}
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def has_packages(python, packages):
    words = "import " + ", ".join(packages)
    return subprocess.run([python, "-c", words], capture_output=True).returncode == 0


def python_with(*packages, embedded=True):
    """The first interpreter that has these packages and, to be embedded, a shared library, that of
    ATTNBENCH_PYTHON before others; or None."""
    named = os.environ.get("ATTNBENCH_PYTHON")
    for python in (named, *CANDIDATES) if named else CANDIDATES:
        facts = described(python)
        if facts and (not embedded or "library" in facts) and has_packages(python, packages):
            return python
    return None


def python_with_torch(module="torch", embedded=True):
    """That of ATTNBENCH_PYTHON, which has to have it; without that variable the first that has, or the
    test is skipped: scripts/test installs torch for the label real-packages only."""
    found, named = python_with(module, embedded=embedded), os.environ.get("ATTNBENCH_PYTHON")
    needed = f"a shared library and {module}" if embedded else module
    if named and found != named:
        raise AssertionError(f"ATTNBENCH_PYTHON is {named}, which has no {needed}")
    if found is None:
        raise unittest.SkipTest(f"no Python with {needed}")
    return found


class PythonTest(PluginTest):
    """`python` runs the classes; `modules` are folders that it finds them in."""

    python = None
    modules = ()

    @classmethod
    def need(cls, *packages, modules=()):
        cls.python, cls.modules = python_with(*packages), modules
        if cls.python is None:
            skip_without("Python with a shared library and " + ", ".join(packages))

    def environment(self, **changes):
        path = os.pathsep.join(map(str, self.modules))
        return super().environment(
            ATTNBENCH_PYTHON=str(self.python),
            PYTHONPATH=path,
            PYTHONDONTWRITEBYTECODE="1",
            **changes,
        )

    def run_classes(self, scenario, *classes, code=0, options=("--no-timing",)):
        """Results by class of module `mine`, or of "MODULE:CLASS"."""
        self.write("scenario.yaml", scenario)
        names = {f"python:{name if ':' in name else 'mine:' + name}": name for name in classes}
        chosen = [word for name in names for word in ("--backend", name)]
        results = self.results("scenario.yaml", "--device", "cpu", *chosen, *options, code=code)
        return {names[result["backend"]]: result for result in results.values()}


class NumpyTest(PythonTest):
    """Classes in numpy, with tests/python/fake_torch in the place of torch."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.need("numpy", modules=[FAKE_TORCH])
