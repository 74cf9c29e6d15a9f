#!/usr/bin/env python3
"""Holds the #include lines of the program against two tables, which module may know which, and which
room of a module may know which of its other rooms, and keeps what backends decide inside
src/backends: nobody else may go by their names.

    check_layers.py [ROOT]

A module is a row of MAY_INCLUDE, a room a folder inside of one. Files that lie in the folder of the
module itself are its entrance: they and its rooms may include each other, but no header may include
itself by way of others. Prints one line per violation; exit status 1 when there is one. First it
plants violations in a scratch tree and fails when one of them goes unseen.
"""

import re
import sys
import tempfile
from pathlib import Path

# Module -> modules that its files may include. Every module may include itself. A longer path wins:
# ops/cpu has its own row. This is the table of the design, with the arrows that the code needs
# beside it: backends and bench pass the inputs and parameter structs of ops on, cli checks
# inputs.file before anything runs and shows the memory of a cache layout; measure compiles the
# kernels that read memory at its ceiling; bench moves and sums the bytes of samples by the functions
# that kernels share, and keeps the settings of the device.
MAY_INCLUDE = {
    "kernels": set(),
    "core": {"kernels"},
    "metadata": {"core"},
    "metrics": {"core"},
    "report": {"core"},
    "mpi": set(),
    "gate": {"core"},
    "interop": {"core", "inputs"},
    "scenario": {"core", "metadata"},
    "inputs": {"core", "metadata", "kernels"},
    "reference": {"core", "metadata"},
    "gpu": {"core"},
    "jit": {"core", "gpu"},
    "plugin": {"core", "gpu"},
    "cudnn": {"core", "gpu"},
    "measure": {"core", "gpu", "jit", "kernels"},
    "ops": {"core", "metadata", "kernels"},
    "ops/cpu": {"core", "metadata", "kernels", "ops"},
    "ops/cuda": {"core", "metadata", "kernels", "ops", "jit", "gpu"},
    "backends": {"core", "metadata", "inputs", "ops", "plugin", "cudnn", "kernels",
                 "reference"},
    "calibrate": {"core", "metadata", "reference", "inputs", "backends"},
    "bench": {"core", "metadata", "scenario", "inputs", "ops", "backends", "measure", "metrics",
              "reference", "ops/cuda", "kernels", "gpu", "mpi"},
    "cli/terminal": {"core", "report"},
    "cli/options": {"core", "cli/terminal", "report"},
    "cli": {"core", "bench", "report", "gpu", "jit", "cli/options"},
    "cli/cases": {"core", "metadata", "inputs", "bench", "scenario", "backends", "measure", "jit",
                  "plugin", "gpu", "ops/cuda", "cli", "cli/options", "cli/terminal"},
    "cli/session": {"core", "inputs", "interop", "bench", "gate", "calibrate", "report",
                    "scenario", "backends", "measure", "jit", "cli", "cli/options", "cli/terminal",
                    "cli/cases"},
    "cli/commands": {"core", "metadata", "inputs", "interop", "bench", "gate", "calibrate",
                     "report", "scenario", "backends", "measure", "jit", "cli", "cli/options",
                     "cli/terminal", "cli/cases", "cli/session"},
    "main": {"cli", "cli/commands", "cli/terminal", "core"},
}

# What the tests of a module may include beside that: the bytes of quantisers are checked against the
# reference. Tests may look into every room of their own module.
TESTS_MAY_INCLUDE = {"ops/cpu": {"reference"}}

# Module -> floors of its rooms, from the ground up. A room may include rooms of the floors below its
# own, none of its own floor and none above: so rooms cannot form circles. The rooms of cli are
# modules and have rows in MAY_INCLUDE.
FLOORS = {
    # Values without a problem, number formats, what a case is, what came out of it.
    "core": [["system"], ["numbers"], ["problem"], ["result"]],
    "metadata": [["parts"], ["encoder", "mask", "mla"]],
    "scenario": [["text"], ["batch"], ["resolve"]],
    "inputs": [["files"], ["cache", "checkpoint"]],
    "interop": [["trace"], ["results"]],
    "reference": [["quantise"], ["ops", "mla"]],
    "gpu": [["toolkit"]],
    "cudnn": [["frontend"]],
    "ops/cpu": [["merge", "quantise"], ["cache", "indexer"], ["attention"]],
    "ops/cuda": [["move"],
                 ["attention", "cache", "indexer", "matmul", "measure", "merge", "quantise", "sample"],
                 ["testing"]],
    # Ranks know no backend; a family may use the pipeline that attention shares; users' kernels are
    # put into the pipelines of every family.
    "backends": [["ranks"], ["attention"], ["cudnn", "encoder", "mla", "op"], ["plugin"]],
    # Verdicts know no case, cases know no job, the judging of a job knows no loop.
    "bench": [["judge", "process", "samples"], ["cases", "ranks"], ["studies", "trial"], ["loop"]],
    # A table is text for any format.
    "report": [["tables"], ["formats"]],
    "kernels": [["common"], ["ptx"], ["attention", "measure", "move"],
                ["cache", "indexer", "matmul", "merge", "quantise"],
                # Several operations in one launch.
                ["fused"]],
}

# Beginning of a third-party #include -> modules that may use it.
THIRD_PARTY = {
    "CLI/": {"cli/options"},
    "yaml-cpp/": {"scenario"},
    "valijson/": {"scenario"},
    "nlohmann/": {"core", "scenario", "inputs", "interop", "report", "gate", "calibrate",
                  "cli/commands"},
    "Eigen/": {"reference", "ops/cpu"},
    "cuda": {"gpu", "jit", "ops/cuda", "measure", "cudnn"},
    "cudnn.h": {"cudnn"},
    "cudnn_frontend": {"cudnn"},
    "cublas": {"gpu"},
    "nvrtc": {"jit", "cudnn"},
    "mpi.h": {"mpi"},
}
# Too heavy for a header of ours.
ONLY_IN_CPP = ("CLI/", "yaml-cpp/", "valijson/", "nlohmann/json.hpp", "Eigen/")

# Tests and what they share: they name backends as they like and look into every room of their module.
TEST_FILE = re.compile(r"(_test\.(cpp|js|py)|_testing\.h|/test_[^/]*|/fake_[^/]*)$")
SOURCE_SUFFIXES = {".h", ".cpp", ".cuh", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def module_of(path):
    """Module of a path relative to the root, or to src/: the longest row of the table."""
    parts = path.split("/")
    if parts[0] == "src":
        parts = parts[1:]
    if parts[0] == "main.cpp":
        return "main"
    for length in (2, 1):
        name = "/".join(parts[:length])
        if len(parts) > length and name in MAY_INCLUDE:
            return name
    return None


def room_of(path, module):
    """Name of the folder inside `module` that holds the path, or None in its own folder."""
    inside = path.removeprefix("src/").removeprefix(module + "/")
    return inside.split("/")[0] if "/" in inside else None


def floor_of(module, room):
    """Height of a room within its module, or None for a room that has no row."""
    for height, rooms in enumerate(FLOORS.get(module, [])):
        if room in rooms:
            return height
    return None


def room_violations(path, module, includes):
    """Sentences about what the room of one file includes from other rooms of its module."""
    room = room_of(path, module)
    if room is None:
        return []
    height = floor_of(module, room)
    if height is None:
        return [f"{path}: no floor for the room {module}/{room} in the table of check_layers.py"]
    found = []
    for include in includes:
        if module_of(include) != module:
            continue
        other = room_of(include, module)
        if other in (None, room):
            continue
        other_height = floor_of(module, other)
        if other_height is None or other_height >= height:
            found.append(f"{path}: room {module}/{room} may not include \"{include}\"")
    return found


def violations_of(path, text):
    """Sentences about the #include lines of one file; `path` is relative to the root."""
    module = module_of(path)
    if module is None:
        return [f"{path}: no row for it in the table of check_layers.py"]
    includes = INCLUDE.findall(text)
    found = [] if TEST_FILE.search("/" + path) else room_violations(path, module, includes)
    for include in includes:
        for prefix, modules in THIRD_PARTY.items():
            if not include.startswith(prefix):
                continue
            if module not in modules:
                found.append(f"{path}: {module} may not include <{include}>")
            elif include.startswith(ONLY_IN_CPP) and path.endswith(".h"):
                found.append(f"{path}: <{include}> belongs into .cpp files")
        if "doctest" in include and not (path.endswith("_test.cpp") or "/test_" in path):
            found.append(f"{path}: <{include}> belongs into tests")
        target = module_of(include)
        if target is None or target == module:
            continue
        is_test = path.endswith("_test.cpp")
        if target in TESTS_MAY_INCLUDE.get(module, set()) and is_test:
            continue
        if target not in MAY_INCLUDE[module]:
            found.append(f"{path}: {module} may not include \"{include}\"")
    return found


# How a backend gets its name in src/backends.
BACKEND_NAME = re.compile(r'(?:\.name|\bk\w*Name) = "([A-Z][A-Z0-9_]*)";'
                          r'|\bname\(\) const override \{ return "([A-Z][A-Z0-9_]*)"; \}')
COMMENT = re.compile(r"//[^\n]*")


def backend_names(root):
    texts = [file.read_text(encoding="utf-8")
             for file in sorted((root / "src" / "backends").rglob("*"))
             if file.suffix in SOURCE_SUFFIXES and not TEST_FILE.search(file.as_posix())]
    return {a or b for text in texts for a, b in BACKEND_NAME.findall(text)}


def names_told_apart(path, text, names):
    """Sentences about lines that go by a backend's name. In C++ the name as a whole literal is one
    already, whatever is done with it; scripts may have it, in a table or an option, and not compare
    with it."""
    if path.startswith("src/backends/") or TEST_FILE.search("/" + path):
        return []
    quoted = rf"[\"'`]({'|'.join(sorted(names))})[\"'`]"
    if path.endswith((".py", ".js")):
        pattern = rf"[!=]==?\s*{quoted}|{quoted}\s*[!=]==?|\bin\s*[\[({{][^\])}}]*?{quoted}"
    else:
        pattern, text = quoted, COMMENT.sub("", text)
    found = {next(filter(None, match.groups())) for match in re.finditer(pattern, text)}
    return [f"{path}: goes by the name of backend {name}: that is for its KernelRules to say"
            for name in sorted(found)]


def header_circles(texts):
    """Sentences about headers that include themselves, directly or by way of others. `texts` has the
    path of every file, relative to the root."""
    by_include = {path.removeprefix("src/"): path for path in texts}
    found, done = [], set()

    def visit(path, trail):
        if path in trail:
            circle = trail[trail.index(path):]
            if path == min(circle):
                found.append(f"{path}: includes itself by way of {', '.join(circle[1:]) or path}")
            return
        if path in done:
            return
        for include in INCLUDE.findall(texts[path]):
            if include in by_include:
                visit(by_include[include], trail + [path])
        done.add(path)

    for path in sorted(texts):
        visit(path, [])
    return found


def check_tree(root):
    files = [file for folder in ("src", "reference", "kernels")
             for file in sorted((root / folder).rglob("*")) if file.suffix in SOURCE_SUFFIXES]
    scripts = [file for folder, suffix in (("python", "py"), ("scripts/opinion", "py"),
                                           ("src/report/page", "js"))
               for file in sorted((root / folder).rglob(f"*.{suffix}"))]
    texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}
    found = header_circles(texts)
    for path, text in texts.items():
        found += violations_of(path, text)
    names = backend_names(root)
    if not names:
        found.append("src/backends: no backend has a name there that check_layers.py can read")
    for file in files + scripts if names else []:
        found += names_told_apart(
            file.relative_to(root).as_posix(), file.read_text(encoding="utf-8"), names)
    return files, found


def planted_violations_are_found():
    """Self-test on a scratch tree: each planted line is found, and what is allowed is not."""
    planted = {
        "src/core/a.cpp": '#include "scenario/scenario.h"\n',
        "reference/b.cpp": '#include "ops/ops.h"\n',
        "src/report/c.cpp": '#  include <CLI/CLI.hpp>\n',
        "src/cli/commands/m.cpp": '#include <CLI/CLI.hpp>\n',
        "src/cli/options/n.cpp": '#include "cli/commands/commands.h"\n',
        "src/scenario/d.h": "#include <yaml-cpp/yaml.h>\n",
        "src/metrics/e.cpp": "#include <Eigen/Dense>\n",
        "src/ops/cpu/f.cpp": '#include "ops/cuda/launch.h"\n',
        "src/bench/g.cpp": "#include <doctest/doctest.h>\n",
        "src/unheard_of/h.cpp": "",
        "src/ops/cpu/l.cpp": '#include "reference/quantise/nvfp4.h"\n',
        "src/bench/judge/s.cpp": '#include "bench/cases/case.h"\n',
        "src/backends/mla/t.h": '#include "backends/encoder/pipeline.h"\n',
        "src/ops/cuda/move/u.cpp": '#include "ops/cuda/attention/attend_spec.h"\n',
        "src/report/tables/v.cpp": '#include "report/formats/markdown.h"\n',
        "src/inputs/attic/w.h": "",
        "src/core/x.h": '#include "core/y.h"\n',
        "src/metadata/m.cpp": 'const bool own = backend == "MINE";\n',
        "src/inputs/n.cpp": 'rule = resolve(problem, triton ? "THEIRS" : "");\n',
        "reference/o.cpp": 'constexpr const char* kWhose = "OURS";\n',
        "python/attnbench/p.py": 'if backend != "MINE":\n    pass\n',
        "scripts/opinion/q.py": "covered = backend in ('OTHER', 'THEIRS')\n",
        "src/report/page/r.js": "const own = result.backend === 'MINE';\n",
    }
    allowed = {
        "src/cli/options/i.cpp": '#include <CLI/CLI.hpp>\n#include <vector>\n',
        "src/cli/commands/i.cpp": '#include "bench/bench.h"\n#include "cli/options/i.h"\n',
        "src/ops/cpu/j.cpp": '#include <Eigen/Core>\n#include "kernels/params.h"\n',
        "src/core/k_test.cpp": "#include <doctest/doctest.h>\n",
        "src/core/y.h": '#include "core/z.h"\n',
        "src/core/z.h": '#include "core/x.h"\n',
        "src/bench/cases/s.cpp": '#include "bench/judge/judge.h"\n#include "bench/bench.h"\n',
        "src/bench/judge/s_test.cpp": '#include "bench/cases/case.h"\n',
        "src/report/tables.cpp": '#include "report/formats/markdown.h"\n',
        "src/ops/cpu/l_test.cpp": '#include "reference/quantise/nvfp4.h"\n',
        "src/backends/mine.cpp": 'c.name = "MINE";\nbool own(Name n) { return n == "MINE"; }\n',
        "src/backends/theirs.cpp": 'constexpr const char* kName = "THEIRS";\n',
        "src/backends/ours.cpp": 'Text name() const override { return "OURS"; }\n',
        "src/metadata/m_test.cpp": 'check("MINE");\n',
        "src/bench/loop/fake_backend.h": 'Text name = "MINE";\n',
        "src/cli/s.cpp": '// "MINE"\nconst char* help = "run --backend MINE";\n',
        "scripts/opinion/t.py": 'RULES = {"MINE": 1}\n',
    }
    with tempfile.TemporaryDirectory() as scratch:
        for path, text in {**planted, **allowed}.items():
            file = Path(scratch, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        _, found = check_tree(Path(scratch))
        blamed = {line.split(":")[0] for line in found}
        (Path(scratch) / "src" / "backends" / "mine.cpp").write_text("", encoding="utf-8")
        (Path(scratch) / "src" / "backends" / "theirs.cpp").write_text("", encoding="utf-8")
        (Path(scratch) / "src" / "backends" / "ours.cpp").write_text("", encoding="utf-8")
        _, nameless = check_tree(Path(scratch))
    return blamed == set(planted) and nameless[-1].startswith("src/backends: no backend")


def main(arguments):
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not planted_violations_are_found():
        print("check_layers.py: its self-test failed: a planted violation was not found, or an "
              "allowed line was blamed")
        return 1
    files, found = check_tree(root)
    for line in found:
        print(line)
    print(f"{len(files)} files, {len(found)} violations")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
