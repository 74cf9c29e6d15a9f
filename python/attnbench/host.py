"""What the program calls once Python runs inside of it. A text that a function returns is a complaint;
what it has to give is None or a tuple."""

import functools
import gc
import math
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
    if isinstance(answer, bool):  # is True a reason, or does it mean that there is none?
        raise TypeError(f"supports() returned {answer}, expected a text or a list of reasons, None without any")
    if not answer:
        return ()
    return (answer,) if isinstance(answer, str) else ("\n".join(answer),)


# What the program makes of a returned tensor (ReturnedTensor::Kind).
OUTPUT, LSE, LSE_BY_TOKEN = 0, 1, 2


# An argument with a default where it is called: what an adapter puts into this module or into Case
# afterwards is not called, neither for it nor for later ones.
def described(source, target, kind, axis, name, tensor_type):
    """The numbers by which the program finds a tensor, or a list of tensors that follow each other along
    `axis`, that of the tokens, for which there may be several: [B, Q, H, Dv] for [T, H, Dv]. Of each: kind,
    address, first token, number of axes, shape, strides."""
    parts = source if type(source) is list else [source]
    expected = tuple(target.shape)
    numbers, shapes, token, fits = [], [], 0, True
    for part in parts:
        # Why exactly: what is derived from this type could compute when it is looked at.
        if type(part) is not tensor_type:
            raise TypeError(f"run() returned {name} as {type(part).__name__}, expected torch.Tensor")
        shape = tuple(part.shape)
        behind = axis + 1 + len(shape) - len(expected)
        tokens = math.prod(shape[axis:behind])
        flat = (*shape[:axis], tokens, *shape[behind:])
        shapes.append(list(flat if behind > axis else shape))
        fits = (fits and behind > axis and part.dtype == target.dtype and part.device == target.device
                and flat[:axis] == expected[:axis] and flat[axis + 1 :] == expected[axis + 1 :])  # fmt: skip
        numbers += kind, part.data_ptr(), token, len(shape), *shape, *part.stride()
        token += tokens
    if not fits or token != expected[axis]:
        found, wanted = f"{parts[0].dtype} {shapes}" if parts else "[]", f"{target.dtype} {list(expected)}"
        if parts and parts[0].device != target.device:
            found, wanted = f"{found} on {parts[0].device}", f"{wanted} on {target.device}"
        raise ValueError(f"run() returned {name} {found}, expected {wanted}")
    return tuple(numbers)


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
        self.tensor_type = torch.Tensor
        self.adapter = describe.load(name)()
        self.is_turned = getattr(self.adapter, "lse_axes", "HT") == "TH"
        self.adapter.prepare(self.problem, self.tensors)

    def run(self, described=described):
        """None, or where the tensors lie that the adapter returned. All of it is timed: what becomes of
        them is up to the program, which copies them without calling Python."""
        if self.stream is not None:
            import torch

            torch.cuda.set_stream(self.stream)
        self.returned = None  # its memory is there for the next one
        returned = self.adapter.run()
        if returned is None:
            return None
        output, lse = returned if type(returned) is tuple else (returned, None)
        numbers = ()
        if output is not None:
            numbers = described(output, self.tensors.output, OUTPUT, 0, "output", self.tensor_type)
        if lse is not None and self.tensors.lse is not None:
            if self.is_turned:
                numbers += described(lse, self.tensors.lse.T, LSE_BY_TOKEN, 0, "lse", self.tensor_type)
            else:
                numbers += described(lse, self.tensors.lse, LSE, 1, "lse", self.tensor_type)
        # Held until the next run, as the replay of a graph leaves its results there, too. Lists by
        # what is in them now.
        self.returned = [list(part) if type(part) is list else part for part in (output, lse)]
        return numbers

    def close(self):
        """Lets go of everything, so that its memory can be given back."""
        self.adapter = self.tensors = self.returned = self.stream = None
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


METHODS = Case.run, Case.close


def prepare(name, problem_address, tensors_address, stream_address, methods=METHODS, guarded=guarded):
    """A complaint, or the functions run and close of the case."""
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
