"""What a Python and the adapters in it are, as lines for the program:

    PYTHON describe.py MODULE:CLASS...

The program reads them before any case runs, from a process of its own: importing may start threads
and take a device. Only this file is read by a Python that is too old for the rest.
"""

import glob
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig

PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 9)


def library():
    """(path of the shared libpython, "") or ("", why there is none)."""
    get = sysconfig.get_config_var
    folders = [get("LIBDIR"), get("LIBPL"), os.path.join(sys.base_prefix, "lib")]
    if get("MULTIARCH") and get("LIBDIR"):
        folders.append(os.path.join(get("LIBDIR"), get("MULTIARCH")))
    # Why LDLIBRARY last: that of a static build is the archive, or a link that needs the -dev package.
    short = "libpython%d.%d%s.so" % (sys.version_info[0], sys.version_info[1],
                                     getattr(sys, "abiflags", ""))  # fmt: skip
    names = [get("INSTSONAME"), short + ".1.0", short, get("LDLIBRARY")]
    for name in names:
        for folder in folders:
            path = os.path.join(folder or "", name or "")
            if folder and name and ".so" in name and os.path.exists(path):
                return path, ""
    return "", (
        "%s has no %s.1.0 (a statically linked Python; on Debian and Ubuntu the package "
        "libpython%d.%d has it)" % (sys.executable, short, sys.version_info[0], sys.version_info[1])
    )


def not_found(package):
    return f"package {package} not found in {sys.executable}"


def missing_packages(adapter):
    """Reasons, one for each package that the adapter needs and this Python does not have."""
    reasons = []
    for package in getattr(adapter, "packages", ()):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError as error:  # the parent of a dotted name
            found, package = None, error.name or package
        if found is None:
            reasons.append(not_found(package))
    return reasons


def load(name):
    """The class of "MODULE:CLASS"."""
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def bits(adapter, attribute, names):
    """The bits of a list of words. Raises ValueError for one that there is not."""
    from attnbench.adapter import Adapter

    result = 0
    words = getattr(adapter, attribute, getattr(Adapter, attribute))
    if isinstance(words, str):  # a list of letters, otherwise
        raise ValueError(f"{attribute}: expected a tuple, ({words!r},), found the text {words!r}")
    for word in words:
        if word not in names:
            raise ValueError(f"{attribute}: unknown '{word}' (known: {', '.join(names)})")
        result |= names[word]
    return result


def choice(adapter, attribute, names):
    from attnbench.adapter import Adapter

    word = getattr(adapter, attribute, getattr(Adapter, attribute))
    if word not in names:
        raise ValueError(f"{attribute}: unknown {word!r} (known: {', '.join(map(repr, names))})")
    return names[word]


def version_of(adapter):
    """The adapter's own word, or else the versions of its packages."""
    from attnbench import versions

    if getattr(adapter, "version", None):
        return str(adapter.version)
    known = [(package, versions.version_of(package)) for package in getattr(adapter, "packages", ())]
    return ", ".join(f"{package} {version}" for package, version in known if version) or "0"


def sources(adapter):
    """The files that say what a class does, its own first: those of its base classes and, where one is
    shipped, all of the shipped ones, which use each other's functions. A class that was made of files
    says of which."""
    if getattr(adapter, "source_files", None):
        return list(adapter.source_files)
    found = [inspect.getsourcefile(adapter)]
    for base in inspect.getmro(adapter):
        if base.__module__ in ("builtins", "attnbench.adapter"):
            continue
        file = inspect.getsourcefile(base)
        found.append(file)
        if base.__module__.startswith("attnbench.adapters."):
            found += sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(file)), "*.py")))
    return [file for file in dict.fromkeys(found) if file]  # none: a base class of an extension


def sha256_of(files):
    """That of a file; of several that of their lines `SHA-256  NAME`, as sha256sum has them."""
    digests = []
    for file in files:
        with open(file, "rb") as source:
            digests.append(hashlib.sha256(source.read()).hexdigest())
    if len(files) == 1:
        return digests[0]
    lines = [f"{digest}  {os.path.basename(file)}\n" for digest, file in zip(digests, files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def facts(adapter):
    """What the program has to know of a class, by name."""
    from attnbench import adapter as words

    for function in ("prepare", "run"):
        if not callable(getattr(adapter, function, None)):
            raise ValueError(f"{function}() is missing")
    types = bits(adapter, "attention_types", words.ATTENTION_TYPES)
    operations = bits(adapter, "operations", words.OPERATIONS)
    if bool(types & words.ATTENTION_TYPES["op"]) != bool(operations):
        raise ValueError("expected operations where attention_types has 'op', and nowhere else")
    files = sources(adapter)
    return {
        "file": files[0],
        "sha256": sha256_of(files),
        "version": version_of(adapter),
        "description": inspect.cleandoc(adapter.__doc__ or "").split("\n")[0],
        "devices": bits(adapter, "devices", words.DEVICES),
        "attention_types": types,
        "dtypes": bits(adapter, "dtypes", words.DTYPES),
        "features": bits(adapter, "features", words.FEATURES),
        "kv": choice(adapter, "kv", words.KV),
        "lse": choice(adapter, "lse", words.LSE),
        "empty_rows": choice(adapter, "empty_rows", words.EMPTY_ROWS),
        "operations": operations,
        "lse_axes": choice(adapter, "lse_axes", words.LSE_AXES),
        "nondeterministic": int(not getattr(adapter, "deterministic", True)),
    }


def describe(name):
    """Pairs of a class: its facts, or `unsupported` or `error` with the reason."""
    try:
        return facts(load(name))
    except ModuleNotFoundError as error:
        module = name.partition(":")[0]
        if error.name and (module + ".").startswith(error.name + "."):
            return {"error": f"{error} in {sys.executable}"}
        return {"unsupported": not_found(error.name)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    out = os.fdopen(os.dup(1), "w", 1, encoding="utf-8")
    os.dup2(2, 1)  # what modules print when they are imported

    def say(key, value):
        out.write("%s %s\n" % (key, str(value).replace("\n", " ")))

    say("python", "%d.%d.%d" % sys.version_info[:3])
    say("executable", sys.executable)
    if sys.version_info[:2] < OLDEST:
        say("unsupported", "%s is Python %d.%d, adapters need 3.9 or newer"
            % ((sys.executable,) + sys.version_info[:2]))  # fmt: skip
        return
    path, trouble = library()
    say(*(("library", path) if path else ("unsupported", trouble)))
    # As `python -m` has it: the working directory first. This file's own folder is no place of modules.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.getcwd()] + [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.path.append(PACKAGES)
    for entry in sys.path:
        say("path", entry)
    for name in sys.argv[1:]:
        say("class", name)
        for key, value in describe(name).items():
            say(key, value)
    say("end", "")
    out.flush()
    os._exit(0)  # threads of what was imported have nothing to finish


if __name__ == "__main__":
    main()
