"""What the program calls once Python runs inside of it. A text that a function returns is a complaint;
what it has to give is None or a tuple."""

import functools
import gc
import os
import sys
import traceback

from attnbench import describe, problem, structs


def complaint(error):
    """One line for the result; the whole traceback goes to stderr."""
    traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
    words = traceback.format_exception_only(type(error), error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return words
    last = frames[-1]
    return f"{words} ({os.path.basename(last.filename)}:{last.lineno} in {last.name})"


def start(search_path):
    """Once, before anything else: `search_path` as the interpreter of the user has it."""
    sys.argv = [""]
    sys.path[:] = search_path.split("\n")
    # What is printed belongs to stderr, and nobody flushes it where a process ends without Python.
    sys.stdout = sys.stderr = os.fdopen(os.dup(2), "w", 1, errors="backslashreplace")


def supports(name, problem_address):
    """(), or (the reasons against a problem, a line each)."""
    try:
        adapter = describe.load(name)()
        missing = describe.missing_packages(adapter)
        if missing:
            return ("\n".join(missing),)
        asked = getattr(adapter, "supports", None)
        answer = asked(problem.Problem(problem_address)) if asked else None
    except ModuleNotFoundError as error:
        return (describe.not_found(error.name),)
    if not answer:
        return ()
    return (answer,) if isinstance(answer, str) else ("\n".join(answer),)


# Functions that bring results are arguments with defaults: what an adapter puts into this module or into
# Case afterwards is not called.


def take(source, target, name, axis):
    """Copies a tensor, or a list of tensors that follow each other along `axis`, that of the tokens,
    for which there may be several: [B, Q, H, Dv] for [T, H, Dv]."""
    import torch

    parts = source if type(source) is list else [source]
    for part in parts:
        if type(part) is not torch.Tensor:
            raise TypeError(f"run() returned {name} as {type(part).__name__}, expected torch.Tensor")
    flat = [part.flatten(axis, axis + part.dim() - target.dim()) for part in parts]
    shapes = [list(part.shape) for part in flat]
    sizes = [shape[axis] for shape in shapes]
    expected = list(target.shape)
    others = lambda shape: shape[:axis] + shape[axis + 1 :]
    if (sum(sizes) != expected[axis] or any(others(shape) != others(expected) for shape in shapes)
            or any(part.dtype != target.dtype for part in flat)):  # fmt: skip
        raise ValueError(
            f"run() returned {name} {parts[0].dtype} {shapes}, expected {target.dtype} {expected}"
        )
    for here, part, own in zip(target.split(sizes, axis), flat, parts):
        if own.data_ptr() == here.data_ptr():
            continue  # a kernel with out= returns the tensor that it was given
        here.copy_(part)
        # What the next run leaves unwritten must not hold these values, should it get this memory.
        own.fill_(float("nan"))


def bring(case, returned, take=take):
    """What a run returned comes to the tensors of the case."""
    if returned is None:
        return
    # Why exactly: what is derived from these types could compute when it is looked at.
    output, lse = returned if type(returned) is tuple else (returned, None)
    if output is not None:
        take(output, case.tensors.output, "output", 0)
    if lse is not None and case.tensors.lse is not None:
        is_turned = getattr(case.adapter, "lse_axes", "HT") == "TH"
        target = case.tensors.lse.T if is_turned else case.tensors.lse
        take(lse, target, "lse", 0 if is_turned else 1)


class Case:
    """A prepared adapter on the stream of the case."""

    def __init__(self, name, problem_address, tensors_address, stream_address):
        import torch

        self.problem = problem.Problem(problem_address)
        torch.set_grad_enabled(False)
        self.stream = None
        if self.problem.device == "cuda":
            device = torch.device("cuda", self.problem.device_id)
            self.stream = torch.cuda.ExternalStream(stream_address, device=device)
            torch.cuda.set_stream(self.stream)  # makes the device current as well
        else:
            torch.set_num_threads(self.problem.num_threads)
        self.tensors = structs.TorchTensors(tensors_address)
        self.returned = self.recorded = None
        self.adapter = describe.load(name)()
        self.adapter.prepare(self.problem, self.tensors)

    def run(self):
        if self.stream is not None:
            import torch

            torch.cuda.set_stream(self.stream)
        self.returned = self.recorded = None  # its memory is there for the next one
        self.returned = self.adapter.run()

    def collect(self, bring=bring):
        """Brings what the last run() returned to where it is judged."""
        returned, self.returned = self.returned, None
        bring(self, returned)

    def collect_sample(self, bring=bring):
        """The same behind a timed run. The replay of a graph has no run() of its own: it leaves its
        results in the tensors that the recorded one returned."""
        if self.returned is not None:
            self.recorded, self.returned = self.returned, None
        bring(self, self.recorded)

    def close(self):
        """Lets go of everything, so that its memory can be given back."""
        self.adapter = self.tensors = self.returned = self.recorded = self.stream = None
        release_memory()


def release_memory():
    """Gives memory back to the device, which other backends need."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def guarded(function):
    """`function`, with exceptions as complaints."""

    def call(*arguments):
        try:
            return function(*arguments)
        except BaseException as error:  # sys.exit() is not for an adapter to call
            return complaint(error)

    return call


METHODS = Case.run, Case.collect, Case.close, Case.collect_sample


def prepare(name, problem_address, tensors_address, stream_address, methods=METHODS):
    """A complaint, or the functions run, collect, close and collect_sample of the case."""
    try:
        case = Case(name, problem_address, tensors_address, stream_address)
    except BaseException as error:
        words = complaint(error)
    else:
        return tuple(guarded(functools.partial(method, case)) for method in methods)
    release_memory()  # here, since the exception held the frames that hold tensors
    return words


start = guarded(start)
supports = guarded(supports)
