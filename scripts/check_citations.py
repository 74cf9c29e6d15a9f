#!/usr/bin/env python3
"""Holds citations of the definitions against the headings of docs/semantics.md and contract.md.

    check_citations.py [ROOT]

Read everywhere in the repository:
  "§8.6"; "semantics 8.6", "semantics section 8", "semantics 8.4.1, 8.4.3"; with "contract" the
  same: "contract §4", "contract.md section 4", "sections 3 and 4 of the contract"; in
  docs/contract.md also "section 4"
A § is of docs/semantics.md unless "contract" is right before it. What is cited must be a heading
("### 8.6 Title") or a numbered item ("- **15.1** ..."), and each number must be there once. A
Markdown file that is named must be in the repository.

Prints one line per violation; exit status 1 when there is one. First it plants violations in a
scratch tree and fails when one of them goes unseen.
"""

import re
import sys
import tempfile
from pathlib import Path

SEMANTICS, CONTRACT = "docs/semantics.md", "docs/contract.md"
# Where citations may be. docs/results holds recorded output.
FOLDERS = ("src", "kernels", "reference", "tests", "scripts", "scenarios", "docs", "python",
           "examples", "benchmarks", "fuzz", "cmake", ".github", ".ci")
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CMakeLists.txt")
SUFFIXES = {".h", ".cpp", ".cuh", ".cu", ".c", ".py", ".js", ".sh", ".yaml", ".yml", ".json", ".md",
            ".txt", ".cmake", ""}
SKIPPED = ("docs/results/", "scripts/check_citations.py")
# Files that commands write; so are all with a name of one letter.
WRITTEN = {"summary.md", "peers.md"}

NUMBER = r"\d+(?:\.\d+)*"
# More numbers behind the first. Those without a point could be any other number, unless the text
# says "sections".
MORE = rf"(?:(?:,| and| to|,? or)\s+\d+(?:\.\d+)+)*"
MORE_SECTIONS = rf"(?:(?:,| and| to|,? or)\s+{NUMBER})*"


def forms_of(document):
    """Patterns whose first group holds the numbers of sections of the document."""
    name = rf"\b{Path(document).stem}(?:\.md)?[),]*"
    return [(document, re.compile(pattern, re.IGNORECASE)) for pattern in (
        rf"{name}\s+(?:section\s+|§\s?)?({NUMBER}{MORE})",
        rf"{name}\s+sections\s+({NUMBER}{MORE_SECTIONS})",
        rf"\bsections?\s+({NUMBER}{MORE_SECTIONS})\s+of\s+the\s+{name}",
    )]


BARE = re.compile(rf"(?<!semantics )(?<!contract )(?<!contract\.md )§\s?({NUMBER})", re.IGNORECASE)
FORMS = [(SEMANTICS, BARE)] + forms_of(SEMANTICS) + forms_of(CONTRACT)
OWN_SECTION = re.compile(rf"\bsections?\s+({NUMBER}{MORE_SECTIONS})")
DEFINED = re.compile(rf"^(?:#{{2,4}} |- \*\*)({NUMBER})(?=[. *])", re.MULTILINE)
MARKDOWN_NAME = re.compile(r"[\w-][\w.-]+\.md\b")
# Every form has one of these.
MENTION = re.compile(r"§|semantics|contract|section|\.md", re.IGNORECASE)
# A citation may go on in the next line of a comment.
LINE_BREAK = re.compile(r"\s*\n[ \t]*(?:///?|#)?[ \t]*")


def joined(text):
    """The text with every line break as one space, and where each line begins in it."""
    starts, parts, length, last = [0], [], 0, 0
    for match in LINE_BREAK.finditer(text):
        parts += [text[last:match.start()], " "]
        length += match.start() - last + 1
        starts += [length] * match.group().count("\n")
        last = match.end()
    return "".join(parts) + text[last:], starts


def violations_of(path, text, sections, markdown):
    """Sentences about one file; `sections` are the numbers of each document, `markdown` the names
    of all Markdown files."""
    if not MENTION.search(text):
        return []
    text, starts = joined(text)
    found = []

    def blame(match, sentence):
        line = sum(start <= match.start() for start in starts)
        found.append(f"{path}:{line}: {sentence}")

    for document, pattern in FORMS + ([(CONTRACT, OWN_SECTION)] if path == CONTRACT else []):
        for match in pattern.finditer(text):
            for number in re.findall(NUMBER, match.group(1)):
                if number not in sections[document]:
                    blame(match, f"'{match.group()}' is no section of {document}")
    for match in MARKDOWN_NAME.finditer(text):
        if match.group() not in markdown | WRITTEN:
            blame(match, f"'{match.group()}' is not in the repository")
    return found


def check_tree(root):
    files = [root / name for name in FILES if (root / name).is_file()]
    for folder in FOLDERS:
        files += [file for file in sorted((root / folder).rglob("*"))
                  if file.is_file() and file.suffix in SUFFIXES]
    texts = {file.relative_to(root).as_posix(): file for file in files}
    texts = {path: file.read_text(encoding="utf-8", errors="replace")
             for path, file in texts.items()
             if not path.startswith(SKIPPED) and "__pycache__" not in path}
    sections, found = {}, []
    for document in (SEMANTICS, CONTRACT):
        numbers = DEFINED.findall(texts.get(document, ""))
        sections[document] = set(numbers)
        found += [f"{document}: section {number} is there {numbers.count(number)} times"
                  for number in sorted(sections[document]) if numbers.count(number) > 1]
    markdown = {Path(path).name for path in texts if path.endswith(".md")}
    for path, text in texts.items():
        found += violations_of(path, text, sections, markdown)
    return texts, found


def planted_violations_are_found():
    """Self-test on a scratch tree: each planted citation is found, and what is right is not."""
    planted = {
        "src/a.h": "// As in §3.9.\n",
        "src/b.cpp": "/// The rest is padding (semantics\n/// §12).\n",
        "kernels/c.cuh": "// §3.1 to §3.7\n",
        "reference/d.cpp": 'rule = "semantics 14.2 bfloat16";\n',
        "tests/e_test.py": '"""Exit codes of contract section 9."""\n',
        "scripts/f": "# the code of contract.md\n# section 3.2\n",
        "scenarios/g.yaml": "# contract §3.1.1\n",
        "README.md": "See sections 4 and 8 of the contract.\n",
        "docs/h.md": "semantics 3.1, 3.8: bytes\n",
        "src/i.h": "// The table is in design.md.\n",
        "src/j.h": "// contract §4 and semantics §4\n",
        "src/k.h": "// semantics section 15.2\n",
        "src/l.h": "// semantics sections 3 and 4\n",
        "src/m.h": "// sections 3 to 4 of the semantics\n",
        "src/n.h": "// contract sections 1, 2\n",
        "docs/o.md": "in [the contract](contract.md), section 2\n",
    }
    allowed = {
        SEMANTICS: "## 3. Attention\n### 3.1 Core\nsee [the contract](contract.md), section 4\n"
                   "## 15. Reference\n- **15.1** Bytes, §15.1. 3.7 is no section.\n",
        CONTRACT: "## 1. File\n## 3. Commands\n### 3.1 Exit codes\n## 4. Result: section 1\n",
        "src/p.h": "// §3, §3.1 and semantics §15.1; contract.md §4; semantics 3.1, 15.1\n",
        "CONTRIBUTING.md": "contract.md section\n3.1, sections 3 and 4 of the contract\n",
        "docs/results/m.json": '"§99"\n',
    }
    with tempfile.TemporaryDirectory() as scratch:
        for path, text in {**planted, **allowed}.items():
            file = Path(scratch, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        _, found = check_tree(Path(scratch))
        blamed = {line.split(":")[0] for line in found}
        text = allowed[CONTRACT] + "## 4. Again: section 2\n"
        Path(scratch, CONTRACT).write_text(text, encoding="utf-8")
        _, more = check_tree(Path(scratch))
    of_contract = [line for line in more if line.startswith(CONTRACT)]
    return blamed == set(planted) and len(found) == len(planted) and len(of_contract) == 2


def main(arguments):
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not planted_violations_are_found():
        print("check_citations.py: its self-test failed: a planted citation was not found, or a "
              "right one was blamed")
        return 1
    files, found = check_tree(root)
    for line in found:
        print(line)
    print(f"{len(files)} files, {len(found)} violations")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
