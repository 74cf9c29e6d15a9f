"""The program behind the package: where it is, and a run of it. Everything that is judged, it judges."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# Keys of a scenario whose values are files. In a file they are relative to it, in a dict to the
# working directory.
_FILES = (("extends",), ("inputs", "file"), ("kv_cache", "scale_file"),
          ("kv_cache", "value_scale_file"), ("mm_encoder", "fp8_scale_path"),
          ("mm_encoder", "fp8_scale_save_path"), ("batch", "trace"))  # fmt: skip


class AttnbenchError(RuntimeError):
    """The program gave no results. `exit_code` is its exit code (2: the input is wrong; 4: an internal
    or CUDA error), the message what it wrote to stderr."""

    def __init__(self, message, exit_code):
        super().__init__(message)
        self.exit_code = exit_code


def find_program():
    """Path of the attnbench program: that of the variable ATTNBENCH_BIN; else the one that this package
    was installed or built with; else the first on the PATH. Raises FileNotFoundError."""
    named = os.environ.get("ATTNBENCH_BIN")
    if named:
        if not os.access(named, os.X_OK):
            raise FileNotFoundError(f"ATTNBENCH_BIN is {named!r}, which is not a program")
        return named
    places = [
        _PACKAGE / "bin" / "attnbench",  # of a wheel
        _PACKAGE.parents[1] / "build" / "attnbench",  # of the source tree
        _PACKAGE.parents[3] / "bin" / "attnbench" if len(_PACKAGE.parents) > 3 else None,  # --install
    ]
    for place in places:
        if place and place.is_file() and os.access(place, os.X_OK):
            return str(place)
    found = shutil.which("attnbench") or shutil.which("attnbench", path=sysconfig.get_path("scripts"))
    if not found:
        raise FileNotFoundError("no attnbench program found; set ATTNBENCH_BIN to its path")
    return found


def run(scenario, *, progress=False, env=None, keep=None, **options):
    """Runs `attnbench run` and returns its Results.

    scenario: a dict with the keys of a scenario file (`schema` and `name` may be left out), the path of
    a file, the name of a shipped scenario, or a list of these.
    options: those of `attnbench run --help`, with underscores: device="cuda", no_timing=True,
    backend=["FLASH_ATTN", "python:mine:Mine"], set={"attention.head_size": 64}, json="out.json".
    progress: whether what the program writes to stderr is shown while it runs.
    env: variables of the program's environment, besides those of this process.
    keep: a folder for the files that a dict becomes. Without it they are gone afterwards, and so is what
    the command `Result.repro` needs.

    Wrong results are results: look at `Results.passed`, or call `Results.check()`. Raises AttnbenchError
    where the program gave no results, with its message; under mpirun all ranks but the first have none.
    Raises ValueError for json="-": the results are read from the file.
    """
    if str(options.get("json")) == "-":
        raise ValueError('json="-": expected the path of a file, from which the results are read')
    with tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
        if keep:
            os.makedirs(keep, exist_ok=True)
        words = [_scenario_word(one, os.path.abspath(keep or folder), index)
                 for index, one in enumerate(_as_list(scenario))]  # fmt: skip
        json_file = str(options.pop("json", None) or os.path.join(folder, "results.json"))
        before = _identity(json_file)
        done = _call(["run", *words, *_option_words({**options, "json": json_file})], progress, env)
        if _identity(json_file) == before:
            raise AttnbenchError(_message(done, env), done.returncode)
        from attnbench import results

        return results.load(json_file, exit_code=done.returncode, messages=done.stderr or "")


def _call(arguments, progress, env):
    command = [find_program(), *arguments]
    if not progress:
        command.append("--no-progress")
    environment = {**os.environ, **(env or {})}
    # Classes of Python are run by the interpreter that asks, with what it has installed.
    environment.setdefault("ATTNBENCH_PYTHON", sys.executable)
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, text=True, check=False,
                          stdout=subprocess.PIPE, encoding="utf-8", errors="backslashreplace",
                          stderr=None if progress else subprocess.PIPE)  # fmt: skip


# Variables in which launchers say which rank a process is.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def _message(done, env):
    if done.returncode < 0:
        return f"attnbench was ended by signal {-done.returncode}"
    environment = {**os.environ, **(env or {})}
    for name in _RANKS if done.returncode == 0 else ():
        if environment.get(name, "0").strip("0"):
            return ("attnbench wrote no results: those of several ranks are with rank 0, and "
                    f"{name} is {environment[name]} here")  # fmt: skip
    return (done.stderr or "").strip() or f"attnbench ended with exit code {done.returncode}"


def _identity(path):
    """What changes when a file is replaced; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _as_list(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _scenario_word(scenario, folder, index):
    """A scenario as a word of the command line."""
    if not isinstance(scenario, dict):
        return os.fspath(scenario)
    complete = {"schema": 1, "name": "python", **_with_absolute_files(scenario)}
    path = os.path.join(folder, f"scenario{index or ''}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(complete, file, default=_plain, allow_nan=False, indent=1)
    return path


def _plain(value):
    """Numbers and arrays of numpy and torch, paths and sets of words as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"a scenario cannot hold a {type(value).__name__}: {value!r}")


def _with_absolute_files(scenario):
    result = dict(scenario)
    for keys in _FILES:
        _make_absolute(result, keys)
    if isinstance(result.get("batch"), (list, tuple)):
        result["batch"] = [dict(one) if isinstance(one, dict) else one for one in result["batch"]]
        for one in result["batch"]:
            if isinstance(one, dict):
                _make_absolute(one, ("trace",))
    return result


def _make_absolute(tree, keys):
    """Replaces tree[keys[0]][...] by an absolute path where such a file is there; what is not there may
    be the name of something that is shipped. Copies the dicts on the way."""
    for key in keys[:-1]:
        if not isinstance(tree.get(key), dict):
            return
        tree[key] = tree = dict(tree[key])
    value = tree.get(keys[-1])
    if isinstance(value, (str, os.PathLike)) and os.path.exists(value):
        tree[keys[-1]] = os.path.abspath(value)


def _option_words(options):
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
            continue
        if isinstance(value, dict):
            value = [f"{key}={_set_text(one)}" for key, one in value.items()]
        for one in _as_list(value):
            words += [option, os.fspath(one) if isinstance(one, os.PathLike) else str(one)]
    return words


def _set_text(value):
    return value if isinstance(value, str) else json.dumps(value, default=_plain)
