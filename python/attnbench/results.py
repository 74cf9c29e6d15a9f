"""A result file as values: dataclasses, and a table for pandas.

Names are those of the result file (docs/contract.md, section 4), and every metric that a later version
of the program adds is an attribute under its name there, too.
"""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

PASSED = ("passed", "unverified")


@dataclass(frozen=True)
class _Metrics:
    """What a section of a result holds. Fields are what most look at; `raw` is the whole section, whose
    keys are attributes as well."""

    raw: dict = field(repr=False, compare=False)

    @classmethod
    def of(cls, section):
        """None for a section that is null."""
        if section is None:
            return None
        names = [one.name for one in dataclasses.fields(cls) if one.name != "raw"]
        return cls(raw=section, **{name: section.get(name) for name in names})

    def __getattr__(self, name):
        if not name.startswith("_") and name in self.raw:
            return self.raw[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self.raw)}")


@dataclass(frozen=True)
class ErrorMetrics(_Metrics):
    """Output or LSE against the float64 reference."""

    max_abs: Optional[float] = None
    mean_abs: Optional[float] = None
    rms_rel: Optional[float] = None
    nmse: Optional[float] = None
    cosine: Optional[float] = None
    err_ratio: Optional[float] = None  # to what rounding in the storage types costs
    matched_pct: Optional[float] = None
    worst_index: Optional[list] = None
    nan_count: Optional[int] = None
    inf_count: Optional[int] = None
    checked_rows: Optional[int] = None
    total_rows: Optional[int] = None
    limit: Optional[str] = None
    rule: Optional[str] = None


@dataclass(frozen=True)
class Timing(_Metrics):
    """Attention with its splits and merges, in microseconds."""

    median_us: Optional[float] = None
    min_us: Optional[float] = None
    q1_us: Optional[float] = None
    q3_us: Optional[float] = None
    noise: Optional[float] = None
    samples_us: Optional[list] = field(default=None, repr=False)
    l2: Optional[str] = None
    mode: Optional[str] = None
    total_us: Optional[float] = None  # the whole layer
    steps: Optional[list] = field(default=None, repr=False)


@dataclass(frozen=True)
class Throughput(_Metrics):
    tflops: Optional[float] = None
    gbps: Optional[float] = None  # 1e9 bytes a second
    kv_gbps: Optional[float] = None
    tokens_per_s: Optional[float] = None
    flops: Optional[float] = None
    bytes: Optional[float] = None
    roofline_pct: Optional[float] = None
    bound: Optional[str] = None  # memory or compute


@dataclass(frozen=True)
class Result:
    """One case on one backend. `problem` is the resolved scenario, `raw` the whole result."""

    id: str
    scenario: str
    case: str
    backend: str
    device: str
    status: str  # passed, incorrect, implausible, unverified, unsupported, error or skipped
    reasons: tuple
    error: Optional[ErrorMetrics]
    lse_error: Optional[ErrorMetrics]
    quantization_error: Optional[ErrorMetrics]
    timing: Optional[Timing]
    throughput: Optional[Throughput]
    repro: str = field(repr=False)  # a command that repeats it
    problem: dict = field(repr=False, compare=False)
    kernels: tuple = field(repr=False, compare=False)
    raw: dict = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw):
        """From an element of `results` of a result file."""
        return cls(
            id=raw["id"], scenario=raw["scenario"], case=raw["case"], backend=raw["backend"],
            device=raw["device"], status=raw["status"], reasons=tuple(raw.get("reasons") or ()),
            error=ErrorMetrics.of(raw.get("error")), lse_error=ErrorMetrics.of(raw.get("lse_error")),
            quantization_error=ErrorMetrics.of(raw.get("quantization_error")),
            timing=Timing.of(raw.get("timing")), throughput=Throughput.of(raw.get("throughput")),
            repro=raw.get("repro") or "", problem=raw.get("problem") or {},
            kernels=tuple(raw.get("kernels") or ()), raw=raw)  # fmt: skip

    @property
    def passed(self):
        """Whether it ran and nothing was found wrong with it."""
        return self.status in PASSED


class Results(Sequence):
    """The results of a run, in its order. Prints as a table, in a notebook too.

    exit_code: of the program (0 all passed, 1 a wrong result, 3 nothing ran, 4 an error); None for a
    file that was loaded. messages: what it wrote to stderr. document: the whole result file.
    """

    def __init__(self, document, exit_code=None, messages=""):
        self.document, self.exit_code, self.messages = document, exit_code, messages
        self._results = tuple(Result.of(raw) for raw in document["results"])

    def __getitem__(self, index):
        return self._results[index]

    def __len__(self):
        return len(self._results)

    @property
    def environment(self):
        return self.document.get("environment") or {}

    @property
    def passed(self):
        """Whether something ran, all of it passed, and the program found no fault. What a backend does
        not support is no failure beside something that passed."""
        ran = [one for one in self if one.status not in ("unsupported", "skipped")]
        return bool(ran) and all(one.passed for one in ran) and self.exit_code in (None, 0)

    def check(self):
        """Returns self; raises AssertionError with the table and the reasons unless `passed`."""
        if not self.passed:
            raise AssertionError("attnbench: " + (str(self) if len(self) else "no results"))
        return self

    def of(self, backend):
        """The results of a backend."""
        return [one for one in self if one.backend == backend]

    def to_dataframe(self):
        """A pandas.DataFrame with a row for each result, indexed by id; columns are the scalars of the
        result file by dotted names, such as timing.median_us and problem.attention.head_size."""
        import pandas

        rows = [dict(_scalars(one.raw)) for one in self]
        frame = pandas.DataFrame(rows, columns=list(dict.fromkeys(key for row in rows for key in row)))
        return frame.set_index("id") if rows else frame

    def _table(self):
        """Rows of texts, the titles first; what quantising costs only if something is quantised."""
        is_quantised = any(one.quantization_error for one in self)
        quant = lambda text: (text,) if is_quantised else ()
        rows = [("case", "backend", "status", "max_abs", "err_ratio", *quant("quant"), "us", "GB/s", "GFLOP/s",
                 "reasons")]  # fmt: skip
        for one in self:
            error, timing, rate = one.error, one.timing, one.throughput
            rows.append((one.case, one.backend, one.status, _number(error and error.max_abs, "{:.1e}"),
                         _number(error and error.err_ratio, "{:.2f}"), *quant(_quant(one.quantization_error)),
                         _number(timing and timing.median_us, "{:.1f}"),
                         *_rates(rate), "; ".join(one.reasons)))  # fmt: skip
        return rows

    def __repr__(self):
        rows = self._table()
        last = len(rows[0]) - 1
        widths = [max(len(row[i]) for row in rows) for i in range(last)]
        lines = ("  ".join([*map(str.ljust, row, widths), row[last]]).rstrip() for row in rows)
        return "\n".join(lines)

    def _repr_html_(self):
        cells = lambda row, tag: "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
        titles, *rows = self._table()
        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
        return f"<table><thead><tr>{cells(titles, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _rates(rate):
    """Of memory traffic and of arithmetic, as in the table of `run`."""
    if rate is None:
        return "", ""
    return _number(rate.gbps, "{:.3g}"), _number(rate.tflops and 1000 * rate.tflops, "{:.3g}")


def _quant(cost):
    """The share, and "!" where scales clip values, as in the table of `run`."""
    if cost is None or cost.rms_rel is None:
        return ""
    percent = 100 * cost.rms_rel
    digits = 1 if percent >= 1 else 2 if percent >= 0.1 else 3
    clips = any(name.startswith("saturated_") and share for name, share in cost.raw.items())
    return f"{percent:.{digits}f}%" + ("!" if clips else "")


def _number(value, text):
    return "" if value is None else text.format(value)


def _scalars(tree, prefix=""):
    """(dotted name, value) of what is neither a list nor a dict; reasons are one text."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _scalars(value, f"{prefix}{key}.")
        elif key == "reasons":
            yield prefix + key, "; ".join(value)
        elif not isinstance(value, list):
            yield prefix + key, value


def load(path: Any, exit_code=None, messages=""):
    """The Results of a file that `attnbench run --json` wrote. Raises ValueError for another file."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if not isinstance(document, dict) or document.get("schema_version") != 1 or "results" not in document:
        raise ValueError(f"{path}: expected a result file with schema_version 1")
    return Results(document, exit_code, messages)
