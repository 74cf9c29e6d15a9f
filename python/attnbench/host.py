"""What the program calls once Python runs inside of it. A text that a function returns is a complaint;
what it has to give is None or a tuple."""

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
        self.returned = None
        self.adapter = describe.load(name)()
        self.adapter.prepare(self.problem, self.tensors)

    def run(self):
        if self.stream is not None:
            import torch

            torch.cuda.set_stream(self.stream)
        self.returned = None  # its memory is there for the next one
        self.returned = self.adapter.run()

    def collect(self):
        """Brings what the last run() returned to where it is judged."""
        returned, self.returned = self.returned, None
        if returned is None:
            return
        output, lse = returned if isinstance(returned, tuple) else (returned, None)
        if output is not None:
            take(output, self.tensors.output, "output")
        if lse is not None and self.tensors.lse is not None:
            axes = getattr(self.adapter, "lse_axes", "HT")
            take(lse, self.tensors.lse.T if axes == "TH" else self.tensors.lse, "lse")


    def close(self):
        """Gives memory back to the device, which other backends need."""
        on_device = self.stream is not None
        self.adapter = self.tensors = self.returned = self.stream = None
        gc.collect()
        if on_device:
            import torch

            torch.cuda.empty_cache()


def take(source, target, name):
    """Copies a tensor, or a list of tensors that follow each other. More axes than those of
    `target` are rows: [B, Q, H, Dv] for [T, H, Dv]."""
    parts = source if isinstance(source, list) else [source]
    rows = [part.flatten(0, part.dim() - target.dim()) for part in parts]
    shapes = [list(part.shape) for part in rows]
    if (sum(shape[0] for shape in shapes) != target.shape[0]
            or any(shape[1:] != list(target.shape[1:]) for shape in shapes)
            or any(part.dtype != target.dtype for part in rows)):  # fmt: skip
        raise ValueError(
            f"run() returned {name} {parts[0].dtype} {shapes}, expected {target.dtype} "
            f"{list(target.shape)}"
        )
    for here, part in zip(target.split([shape[0] for shape in shapes]), rows):
        here.copy_(part)
    # What the next run leaves unwritten must not hold these values, should it get this memory.
    for part in parts:
        part.fill_(float("nan"))


def guarded(function):
    """`function`, with exceptions as complaints."""

    def call(*arguments):
        try:
            return function(*arguments)
        except BaseException as error:  # sys.exit() is not for an adapter to call
            return complaint(error)

    return call


def prepare(name, problem_address, tensors_address, stream_address):
    """A complaint, or the functions run, collect and close of the case."""
    try:
        case = Case(name, problem_address, tensors_address, stream_address)
    except BaseException as error:
        return complaint(error)
    return guarded(case.run), guarded(case.collect), guarded(case.close)


start = guarded(start)
supports = guarded(supports)
