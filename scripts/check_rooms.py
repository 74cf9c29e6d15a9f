#!/usr/bin/env python3
"""Holds the sizes of the house: a newcomer finds the room for a change while rooms stay small enough
to look over and files large enough to say something.

    check_rooms.py [ROOT]

Of the product files (src, reference and kernels, tests aside): no folder holds more than 25, at most
60 of all have fewer than 40 lines, and a .cpp has the header of its own name beside it. Exceptions
from the last are realisations of a table's rows, which the header of the table declares, and
alternatives that the build chooses between, whose header lies in the folder above. Prints one line
per violation; exit status 1 when there is one. First it checks itself on a scratch tree.
"""

import collections
import re
import sys
import tempfile
from pathlib import Path

MOST_FILES = 25
MOST_FRAGMENTS = 60
FRAGMENT_LINES = 40

FOLDERS = ("src", "reference", "kernels")
SUFFIXES = {".h", ".cpp", ".cuh", ".def"}
TEST = re.compile(r"_test\.cpp$|_testing\.(h|cpp)$|/test_\w+\.h$|/fake_\w+\.h$|/naive_\w+\.h$")

# Path of a .cpp -> the header of the table whose rows it realises, and what a realised row looks like.
# Why both: any source may include the header. operations.def has a row an operation, backend_list.h a
# row a backend, commands.cpp a row a command, candidates.cpp a row a kernel to choose from.
TABLES = [
    (r"src/ops/cpu/.*", "ops/cpu/cpu_ops.h", r"^void \w+\((const attn::|$)"),
    (r"src/ops/cuda/.*", "ops/cuda/operations.h", r"^void \w+\(Launcher& "),
    (r"src/ops/cuda/attention/.*", "ops/cuda/attention/candidates.h", r"^const AttendCandidate k\w+"),
    (r"src/backends/.*", "backends/backend_list.h", r"^const Backend& \w+_backend\(\)"),
    (r"src/cli/commands/.*", "cli/commands/commands.h", r"^RunCommand declare_\w+\("),
]
# Chosen by the build: with or without the CUDA toolkit, cuDNN's frontend.
ALTERNATIVES = re.compile(r"/(toolkit|frontend)/\w+\.cpp$|/no_\w+\.cpp$")


def has_header(root, path, text):
    """Whether the .cpp at `path` is the source of a header, of a table's rows, or of main()."""
    file = root / path
    if file.with_suffix(".h").exists() or file.with_suffix(".cuh").exists():
        return True
    if path == "src/main.cpp" or ALTERNATIVES.search("/" + path):
        return True
    return any(re.fullmatch(pattern, path) and f'#include "{header}"' in text and
               re.search(row, text, re.MULTILINE) for pattern, header, row in TABLES)  # fmt: skip


def violations_of(root):
    found, fragments = [], []
    folders = collections.Counter()
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*"))
             if file.suffix in SUFFIXES and not TEST.search(file.as_posix())]  # fmt: skip
    for file in files:
        path = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8")
        folders[path.rpartition("/")[0]] += 1
        if text.count("\n") < FRAGMENT_LINES:
            fragments.append(path)
        if file.suffix == ".cpp" and not has_header(root, path, text):
            found.append(f"{path}: no header of its own name")
    for folder, count in sorted(folders.items()):
        if count > MOST_FILES:
            found.append(f"{folder}: {count} files, more than {MOST_FILES}")
    if len(fragments) > MOST_FRAGMENTS:
        found.append(f"{len(fragments)} files of fewer than {FRAGMENT_LINES} lines, more than "
                     f"{MOST_FRAGMENTS}: {' '.join(fragments)}")  # fmt: skip
    return found, len(files), len(fragments)


def planted_violations_are_found():
    """Self-test: a crowded folder, a crowd of fragments and a .cpp without header are found."""
    lines = "// A line.\n" * FRAGMENT_LINES
    files = {
        "src/core/lonely.cpp": lines,
        "src/core/paired.cpp": lines,
        "src/core/paired.h": lines,
        "src/core/paired_test.cpp": lines,
        "src/main.cpp": lines,
        "src/gpu/toolkit/runtime.cpp": lines,
        "src/cli/commands/run.cpp": '#include "cli/commands/commands.h"\nRunCommand declare_run(\n' + lines,
        "src/backends/guise.cpp": '#include "backends/backend_list.h"\n' + lines,
        "src/cli/commands/stray.cpp": lines,
        **{f"src/crowd/file{i}.h": lines for i in range(MOST_FILES + 1)},
        **{f"src/dust/{i % 5}/file{i}.h": "// Short.\n" for i in range(MOST_FRAGMENTS + 1)},
    }
    with tempfile.TemporaryDirectory() as scratch:
        for path, text in files.items():
            file = Path(scratch, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        found = violations_of(Path(scratch))[0]
    begins = ["src/core/lonely.cpp:", "src/cli/commands/stray.cpp:", "src/backends/guise.cpp:",
              "src/crowd:",
              f"{MOST_FRAGMENTS + 1} files"]  # fmt: skip
    return sorted(begins) == sorted(next((b for b in begins if line.startswith(b)), line) for line in found)


def main(arguments):
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not planted_violations_are_found():
        print("check_rooms.py: its self-test failed")
        return 1
    found, count, fragments = violations_of(root)
    for line in found:
        print(line)
    print(f"{count} files, {fragments} below {FRAGMENT_LINES} lines, {len(found)} violations")
    return 1 if found or not count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
