"""Which versions of installed packages an adapter runs: of what is imported, whatever its distribution
is called (`flashinfer` comes with flashinfer-python, `fa3_fwd_interface` with fa3-fwd)."""

import csv
import importlib.util
import json
import os
import sys
from importlib import metadata
from urllib.parse import unquote, urlparse


def version_of(package):
    """Version of the module or package of this dotted name; "" where nothing says it. Does not import
    it, but for the parents of a dotted name."""
    try:
        spec = importlib.util.find_spec(package)
    except (ModuleNotFoundError, ValueError):  # no parent; a module without a spec
        spec = None
    file = spec.origin if spec else None
    if file and os.path.exists(file):
        for distribution in metadata.distributions():
            if brings(distribution, package, file):
                return distribution.version
    return str(getattr(sys.modules.get(package), "__version__", ""))


def brings(distribution, package, file):
    """Whether the module comes from this distribution. One that is installed too, and hidden by another
    of the same name earlier on the path, is not what runs."""
    source = editable_source(distribution)
    if source:
        return is_below(file, source)
    record = distribution.read_text("RECORD")
    if not record:  # that of a Linux distribution, or of setup.py develop
        return is_named(distribution, package) and is_below(file, distribution.locate_file(""))
    # As the record has it, e.g. flash_attn/cute/__init__.py.
    depth = package.count(".") + 1 + (os.path.basename(file) == "__init__.py")
    tail = "/".join(os.path.abspath(file).split(os.sep)[-depth:])
    rows = csv.reader(line for line in record.splitlines() if tail in line)
    return any(is_same(distribution.locate_file(path), file) for path, *_ in rows)


def is_same(one, other):
    return os.path.exists(one) and os.path.samefile(one, other)


def is_below(file, folder):
    return os.path.realpath(file).startswith(os.path.join(os.path.realpath(folder), ""))


def is_named(distribution, package):
    """Whether the package is among its top-level modules, or else has its name."""
    name = distribution.metadata["Name"] or ""
    names = (distribution.read_text("top_level.txt") or name.replace("-", "_")).split()
    return package.partition(".")[0] in names


def editable_source(distribution):
    """The folder of `pip install -e`, which the listing does not have; "" for other installations."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return ""
    return unquote(urlparse(origin.get("url", "")).path)
