"""Text of a C++ source with many mutants at once, one of which is chosen when the program runs.

Every mutant replaces one piece of text. The smallest block of statements around that piece is there
twice afterwards, with and without the fault; which of the two runs is decided by the environment
variable ATTNBENCH_MUTANT. So a source is compiled once for all of its mutants. A piece that is in no
such block (a constant, a signature, the labels of a switch) cannot be chosen this way.
"""

import re

VARIABLE = "ATTNBENCH_MUTANT"

# Without a value no mutant is chosen. Numbers are from 1: before the variable is initialised it is 0. Once
# where several of these texts are compiled as one.
CHOICE = f"""#ifndef ATTNBENCH_MUTANT_CHOICE
#define ATTNBENCH_MUTANT_CHOICE
#include <cstdlib>
namespace {{
inline int attnbench_number_of_mutant() {{
  const char* const text = std::getenv("{VARIABLE}");
  return text == nullptr ? 0 : std::atoi(text);
}}
const int attnbench_mutant = attnbench_number_of_mutant();
}}  // namespace
#endif
"""

# What holds braces that are none: comments and literals.
OPAQUE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL)
# What comes before the brace of a block of statements.
OPENS_BLOCK = re.compile(r"(\)|\b(const|noexcept|override|else|do|mutable))\s*$")
OPENS_TYPED_LAMBDA = re.compile(r"\)\s*(mutable\s*)?->\s*[\w:<>,&* ]+$")


def blanked(text):
    """The same text, every comment and literal of it blank."""
    return OPAQUE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def head_of(text, brace):
    """Where the head of the block at `brace` has its opening parenthesis; None where there is none."""
    depth = 0
    for i in range(text.rfind(")", 0, brace), -1, -1):
        depth += (text[i] == ")") - (text[i] == "(")
        if depth == 0:
            return i
    return None


def is_statements(text, brace):
    """Whether statements follow the brace, and not initialisers, members or the cases of a switch."""
    before = text[:brace]
    if OPENS_TYPED_LAMBDA.search(before[-200:]):
        return True
    found = OPENS_BLOCK.search(before)
    if found is None:
        return False
    if found.group(1) in ("else", "do"):
        return True
    head = head_of(text, brace)
    return head is not None and re.search(r"\bswitch\s*$", text[:head]) is None


def blocks_of(text):
    """(start, end) of what is inside the braces of every block of statements."""
    plain = blanked(text)
    found, open_braces = [], []
    for i, character in enumerate(plain):
        if character == "{":
            open_braces.append(i)
        elif character == "}" and open_braces:
            start = open_braces.pop()
            if is_statements(plain, start):
                found.append((start + 1, i))
    return found


def with_choices(text, mutants):
    """The text with all mutants that can be chosen, and their numbers by index. `mutants` are tuples
    (number, find, replace), `find` once in the text."""
    blocks = blocks_of(text)
    at_block = {}  # of a block: number, where its piece is, what comes there
    chosen = {}
    for index, (number, find, replace) in enumerate(mutants):
        at = text.index(find)
        around = [(s, e) for s, e in blocks if s <= at and at + len(find) <= e]
        if around and blanked(replace).count("{") == blanked(replace).count("}"):
            block = min(around, key=lambda b: b[1] - b[0])
            at_block.setdefault(block, []).append((number, at, len(find), replace))
            chosen[index] = number

    def written(start, end, own=None):
        """text[start:end] with the choices in it, but for those of the block `own`."""
        result, here = [], start
        for block in sorted(at_block, key=lambda b: (b[0], -b[1])):
            if block != own and here <= block[0] and block[1] <= end:
                result += [text[here:block[0]], choice(block)]
                here = block[1]
        return "".join([*result, text[here:end]])

    def choice(block):
        """What stands in the braces of a block: each fault in a copy, then the text without."""
        copies = []
        for number, at, length, replace in at_block[block]:
            faulty = text[block[0]:at] + replace + text[at + length:block[1]]
            copies.append(f"if (attnbench_mutant == {number}) {{{faulty}}} else ")
        return "".join(copies) + "{" + written(*block, own=block) + "}"

    return CHOICE + written(0, len(text)), chosen
