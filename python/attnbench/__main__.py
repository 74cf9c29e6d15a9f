"""`python -m attnbench ARGUMENTS`, and the command `attnbench` of the wheel: the program itself.

Adapters in Python run in the interpreter that started it, unless ATTNBENCH_PYTHON names another.
"""

import os
import sys

from attnbench.program import find_program


def main():
    try:
        program = find_program()
    except FileNotFoundError as error:
        print(f"attnbench: {error}", file=sys.stderr)
        return 4
    os.environ.setdefault("ATTNBENCH_PYTHON", sys.executable)
    # In place of this process: signals, the terminal and the exit code are the program's.
    os.execv(program, ["attnbench", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
