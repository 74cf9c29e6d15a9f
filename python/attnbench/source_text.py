"""A function as text that another process can run: an import where its module can be imported, else its
source with that of all it uses."""

import __future__
import ast
import dis
import functools
import importlib
import inspect
import sys
import textwrap
import types

_LITERALS = (bool, int, float, complex, str, bytes, type(None), list, tuple, dict, set)


def collect(function):
    """(lines that define it, the expression that it is then). Raises TypeError for what cannot be said
    in text, naming it."""
    collector = _Collector()
    return collector.text_of(function)


def importable_name(value):
    """(module, dotted name) under which another process finds this very object, or None."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module and name and module != "__main__" and _found(module, name) is value:
        return module, name
    # What an extension defines often names another place than the one where it is.
    name = getattr(value, "__name__", None)
    if inspect.isbuiltin(value) and name:
        places = [module for module, found in list(sys.modules.items())
                  if module != "__main__" and getattr(found, "__dict__", {}).get(name) is value]  # fmt: skip
        if places:
            return min(places, key=lambda module: ("._" in module or module[0] == "_", len(module))), name
    return None


def _found(module, name):
    try:
        # A module that a notebook or a test made by hand has no file that the other process could read.
        found = sys.modules.get(module) or importlib.import_module(module)
        if getattr(found, "__spec__", None) is None:
            return None
        return functools.reduce(getattr, name.split("."), found)
    except (ImportError, AttributeError, ValueError):
        return None


class _Collector:
    def __init__(self):
        self.futures, self.lines, self.known = set(), [], {}

    def text_of(self, function):
        if isinstance(function, functools.partial):
            raise TypeError("cannot hand over a functools.partial; wrap it in a function")
        if inspect.ismethod(function):
            raise TypeError("cannot hand over a method; wrap it in a function")
        word = "_function"
        self.define(word, function)
        futures = [f"from __future__ import {name}" for name in sorted(self.futures)]
        return "\n".join([*futures, *self.lines]), word

    def define(self, word, value):
        """Adds lines after which `word` is `value`."""
        if word in self.known:
            if self.known[word] is not value:
                raise TypeError(f"cannot hand over two different things called {word!r}; rename one")
            return
        self.known[word] = value
        self.lines += self.definition(word, value)

    def definition(self, word, value):
        if isinstance(value, types.ModuleType):
            if value.__name__ == "__main__":
                raise TypeError(f"cannot hand over the module __main__ (as {word!r})")
            return [f"import {value.__name__} as {word}"]
        place = importable_name(value)
        if place:
            module, name = place
            first, _, rest = name.partition(".")
            lines = [f"from {module} import {first} as {word}"]
            return lines + ([f"{word} = {word}.{rest}"] if rest else [])
        if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):
            return ["import torch as _torch", f"{word} = _torch.{_torch_text(value)}"]
        if isinstance(value, _LITERALS) and _is_literal(value):
            return [f"{word} = {value!r}"]
        code = _code_of(value)
        if code is None and not inspect.isclass(value):
            raise TypeError(f"cannot hand over {word!r}, a {type(value).__name__}: only functions, "
                            "modules, numbers and text; or put the function into a module")  # fmt: skip
        return self.source(word, value, code)

    def source(self, word, value, code):
        """The source of a function or class, behind what it uses."""
        node, text = _node_of(value, code)
        bound, scope = _scope_of(value)
        if code is not None and code.co_flags & __future__.annotations.compiler_flag:
            self.futures.add("annotations")
        own = getattr(node, "name", None)
        for name in sorted(_used_names(node, code) - {own}):
            if name in bound or name in scope:  # else a builtin
                self.define(name, bound[name] if name in bound else scope[name])
        if isinstance(node, ast.Lambda):
            return [f"{word} = {text}"]
        lines = ["", "", text]
        if own != word:
            if self.known.setdefault(own, value) is not value:
                raise TypeError(f"cannot hand over two different things called {own!r}; rename one")
            lines.append(f"{word} = {own}")
        return lines


def _torch_text(value):
    return str(value).partition(".")[2] if type(value).__name__ == "dtype" else f"device({str(value)!r})"


def _is_literal(value):
    try:
        return ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError):
        return False


def _inner(value):
    """The function inside of a decorator's object: functools.wraps leaves it as __wrapped__, Triton's
    jit as fn."""
    while not isinstance(value, types.FunctionType):
        inner = getattr(value, "__wrapped__", None) or getattr(value, "fn", None)
        if inner is None or inspect.isclass(value):
            return None
        value = inner
    return inspect.unwrap(value)


def _code_of(value):
    function = _inner(value)
    return function.__code__ if function else None


def _used_names(node, code):
    """Names from outside of a function or class: what its code loads, and what stands at its def."""
    if code is None:
        return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    head = [*getattr(node, "decorator_list", []), *node.args.defaults, *node.args.kw_defaults]
    head += [one.annotation for one in ast.walk(node.args) if isinstance(one, ast.arg)]
    head.append(getattr(node, "returns", None))
    names = {one.id for part in head if part for one in ast.walk(part) if isinstance(one, ast.Name)}
    return names | set(code.co_freevars) | _global_names(code)


def _global_names(code):
    names = {one.argval for one in dis.get_instructions(code) if one.opname.startswith("LOAD_GLOBAL")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _scope_of(value):
    """(names of the functions around it, names of its module)."""
    function = _inner(value)
    if function is None:
        module = sys.modules.get(value.__module__)
        return {}, vars(module) if module else {}
    cells = function.__closure__ or ()
    bound = {}
    for name, cell in zip(function.__code__.co_freevars, cells):
        try:
            bound[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            pass
    return bound, function.__globals__


def _node_of(value, code):
    """The syntax tree of a function or class in its file, and its source."""
    subject = value if code is None else _inner(value)
    name = getattr(value, "__name__", type(value).__name__)
    try:
        lines, start = inspect.findsource(subject)
    except (OSError, TypeError):
        raise TypeError(f"cannot hand over {name!r}: its source is not known; put it into a "
                        "module") from None  # fmt: skip
    whole = "".join(lines)
    wanted = code.co_firstlineno if code is not None else start + 1
    found = [node for node in ast.walk(ast.parse(whole)) if _first_line(node) == wanted
             and _may_be(node, code)]  # fmt: skip
    if len(found) != 1:
        raise TypeError(f"cannot hand over {name!r}: {len(found) or 'no'} functions begin in line "
                        f"{wanted} of {inspect.getsourcefile(subject)}; give it a def of its own")  # fmt: skip
    node = found[0]
    decorators = getattr(node, "decorator_list", [])
    if value is not subject and not decorators:
        raise TypeError(f"cannot hand over {name!r}: it was wrapped outside of its definition; use a "
                        "decorator, or put it into a module")  # fmt: skip
    if isinstance(node, ast.Lambda):
        return node, "(" + ast.get_source_segment(whole, node) + ")"
    return node, textwrap.dedent("".join(lines[wanted - 1 : node.end_lineno]))


def _first_line(node):
    decorators = getattr(node, "decorator_list", [])
    return min(one.lineno for one in (*decorators, node)) if hasattr(node, "lineno") else None


def _may_be(node, code):
    if code is None:
        return isinstance(node, ast.ClassDef)
    if code.co_name == "<lambda>":
        return isinstance(node, ast.Lambda)
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name
