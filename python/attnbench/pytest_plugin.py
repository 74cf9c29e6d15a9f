"""For pytest: the fixtures attnbench_run and attnbench_judge, which fail a test whose results did not
pass. Without an installed package: pytest -p attnbench.pytest_plugin."""

import pytest


def pytest_addoption(parser):
    group = parser.getgroup("attnbench")
    group.addoption("--attnbench-device", default=None, metavar="DEVICE",
                    help="device of attnbench: auto, cpu or cuda[:N]")  # fmt: skip
    group.addoption("--attnbench-timing", action="store_true",
                    help="measure times in attnbench's fixtures, too")  # fmt: skip


def _fixture(config, function):
    """`function` with the options of this run of pytest, and a failed test for what did not pass."""

    def call(*arguments, **options):
        __tracebackhide__ = True
        options.setdefault("device", config.getoption("--attnbench-device") or "auto")
        options.setdefault("no_timing", not config.getoption("--attnbench-timing"))
        results = function(*arguments, **options)
        if not results.passed:
            pytest.fail(f"attnbench:\n{results}\n{results.messages}".rstrip(), pytrace=False)
        return results

    return call


@pytest.fixture
def attnbench_run(request):
    """attnbench.run(), which fails the test unless everything that ran passed."""
    from attnbench.program import run

    return _fixture(request.config, run)


@pytest.fixture
def attnbench_judge(request):
    """attnbench.judge(), which fails the test unless the function passed."""
    from attnbench.judging import judge

    return _fixture(request.config, judge)
