#!/usr/bin/env python3
"""An independent check of saved tensors, which shares nothing with the attnbench program.

Reads the files of `attnbench run ... --save-tensors DIR`, reads the paged cache back through the
block table, quantises and dequantises keys and values itself, recomputes output and LSE in float64
from the definitions, and compares all of it with what the program saved.

    second_opinion.py FILE_OR_DIR... [--verbose]

Prints a line per file and `N passed, N failed`. Exit status: 0 all agree, 1 some disagree,
2 bad usage, or a file that cannot be judged. Needs Python 3.9 and numpy.
"""

import argparse
import sys
from pathlib import Path

try:
    import numpy  # noqa: F401
except ImportError:
    print("second_opinion.py: numpy not found (apt-get install python3-numpy)", file=sys.stderr)
    sys.exit(2)

from opinion.checks import check_file
from opinion.errors import Disagreement, FormatError


def files_in(arguments):
    """Every .safetensors file named or below a named directory, in a stable order."""
    files = []
    for argument in map(Path, arguments):
        files += sorted(argument.rglob("*.safetensors")) if argument.is_dir() else [argument]
    return files


def main(arguments):
    parser = argparse.ArgumentParser(
        description="Recomputes saved attention tensors in float64 and compares.",
        epilog="example: second_opinion.py tensors/ --verbose",
    )
    parser.add_argument("files", nargs="+", metavar="FILE_OR_DIR")
    parser.add_argument("--verbose", action="store_true", help="show the figures")
    options = parser.parse_args(arguments)
    files = files_in(options.files)
    if not files:
        parser.error("no .safetensors files found")

    passed, failed, status = 0, 0, 0
    for file in files:
        try:
            figures = check_file(file)
        except Disagreement as error:
            print(f"FAILED {file.name}: {error}")
            failed, status = failed + 1, max(status, 1)
        except FormatError as error:
            print(f"FAILED {file.name}: cannot be judged: {error}")
            failed, status = failed + 1, 2
        else:
            passed += 1
            detail = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
            print(f"passed {file.name}" + (f": {detail}" if options.verbose else ""))
    print(f"{passed} passed, {failed} failed")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
