"""What a Dockerfile and a GitHub workflow say to do, read from the files themselves, so that tests do the very
same. As much of either language as this project uses; anything else is an error."""

import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

KNOWN = ("ARG", "FROM", "COPY", "WORKDIR", "RUN", "ENTRYPOINT", "CMD")


class Stage:
    """A stage of a Dockerfile: its name, its image, and its instructions as (word, text)."""

    def __init__(self, image, name):
        self.image, self.name, self.instructions = image, name, []

    def of(self, word):
        return [text for kind, text in self.instructions if kind == word]


def dockerfile_stages(path, **arguments):
    """The stages, with `ARG`s filled in: those that are given, else their defaults. Errors: ValueError for
    an instruction that is not known here, or a variable without a value."""
    text = re.sub(r"(?m)^#.*\n", "", Path(path).read_text(encoding="utf-8")).replace("\\\n", "\n\\\n")
    text = re.sub(r"\n\\\n\s*", " ", text)
    values, stages = {}, []

    def filled(words):
        def value_of(match):
            if match[1] not in values:
                raise ValueError(f"{match[0]} has no value")
            return values[match[1]]

        return re.sub(r"\$\{(\w+)\}", value_of, words)

    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word not in KNOWN:
            raise ValueError(f"unknown instruction: {line}")
        if word == "ARG":
            name, _, default = rest.partition("=")
            values[name] = arguments.get(name, default)
        elif word == "FROM":
            image, _, name = filled(rest).partition(" AS ")
            stages.append(Stage(image, name))
        else:
            stages[-1].instructions.append((word, filled(rest)))
    return stages


def is_ignored(path, patterns):
    """Whether `COPY .` leaves out this path of the source tree, by the lines of a .dockerignore."""

    def matches(pattern):
        anywhere, _, name = pattern.strip("/").rpartition("**/")
        if anywhere or not name:
            raise ValueError(f"a pattern that is not known here: {pattern}")
        if pattern.startswith("**/"):
            return any(fnmatch(part, name) for part in Path(path).parts)
        return fnmatch(Path(path).parts[0], name)

    return any(map(matches, patterns))


def copy_context(root, target):
    """Copies what `COPY . TARGET` takes of a source tree."""
    text = (Path(root) / ".dockerignore").read_text(encoding="utf-8")
    patterns = [line.strip() for line in text.splitlines() if line.strip()]

    def left_out(folder, names):
        below = Path(folder).relative_to(root)
        return [name for name in names if is_ignored(below / name, patterns)]

    shutil.copytree(root, target, ignore=left_out, symlinks=True, dirs_exist_ok=True)


def workflow_commands(path):
    """The scripts of a GitHub workflow by job, in their order. Needs PyYAML."""
    import yaml

    jobs = yaml.safe_load(Path(path).read_text(encoding="utf-8"))["jobs"]
    return {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}


def commands(script):
    """The single commands of a shell script, however they are joined."""
    return [line.strip() for line in re.split(r"&&|\n", script) if line.strip()]
