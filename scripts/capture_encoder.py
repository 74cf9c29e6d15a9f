#!/usr/bin/env python3
"""Captures q, k and v of every attention layer of a real trained encoder.

The encoder is the BERT of rxnfp 0.1.0 (12 layers, 4 heads of 64, trained on chemical reactions; MIT
licence), whose weights ship inside the published Python package. It is fetched with pip, or given
with --wheel; nothing of it is executed: the weights are read by an unpickler that knows tensors and
nothing else, and the forward pass is the one below, in numpy. That it is the right one is checked
against the fingerprint that the package's own README prints for its example reaction.

Tensors are written as attnbench calibrate takes them: <layer>.q, <layer>.k, <layer>.v [T, 4, 64]
before the softmax scale, <layer>.cu_seqlens.

Example: scripts/capture_encoder.py --output captured.safetensors
         attnbench calibrate --tensors captured.safetensors --output scales.json
"""

import argparse
import collections
import io
import math
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import zipfile

import numpy as np

from opinion import safetensors_file

PACKAGE = "rxnfp==0.1.0"
MODEL = "rxnfp/models/transformers/bert_ft/"
LAYER = "encoder.layer.{}.attention"
NUM_LAYERS, NUM_HEADS, HEAD_SIZE, WIDTH = 12, 4, 64, 256
EPSILON = 1e-12
TOKENS = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$"
    r"|%[0-9]{2}|[0-9])"
)
# More reactions from textbooks: esterification to aspirin, Suzuki coupling, amide to paracetamol.
TEXTBOOK = (
    "O=C(O)c1ccccc1O.CC(=O)OC(C)=O>>CC(=O)Oc1ccccc1C(=O)O",
    "Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
    "Nc1ccc(O)cc1.CC(=O)OC(C)=O>>CC(=O)Nc1ccc(O)cc1",
)


class TensorUnpickler(pickle.Unpickler):
    """Reads the tensors of a PyTorch checkpoint of before 1.6 as (storage key, offset, shape)."""

    def __init__(self, file):
        super().__init__(file)
        self.storages = {}

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, stride, *rest: (storage, offset, shape, stride)
        if (module, name) in (("torch", "FloatStorage"), ("torch", "LongStorage")):
            return name
        raise pickle.UnpicklingError(f"{module}.{name} is no tensor")

    def persistent_load(self, saved):
        _, kind, key, _, size, _ = saved
        self.storages[key] = (kind, size)
        return key


def read_checkpoint(data):
    """Name -> array of a checkpoint in the format before PyTorch 1.6."""
    file = io.BytesIO(data)
    for _ in range(3):  # magic number, version, machine
        TensorUnpickler(file).load()
    unpickler = TensorUnpickler(file)
    entries = unpickler.load()
    keys = TensorUnpickler(file).load()
    types = {"FloatStorage": "<f4", "LongStorage": "<i8"}
    values = {}
    for key in keys:
        kind, size = unpickler.storages[key]
        (count,) = np.frombuffer(file.read(8), "<i8")
        if count != size:
            raise ValueError(f"storage {key} has {count} elements, not {size}")
        dtype = np.dtype(types[kind])
        values[key] = np.frombuffer(file.read(size * dtype.itemsize), dtype)
    tensors = {}
    for name, (key, offset, shape, stride) in entries.items():
        if stride != tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))):
            raise ValueError(f"{name} is not contiguous")
        tensors[name] = values[key][offset : offset + math.prod(shape)].reshape(shape)
    return tensors


def normalise(x, weights, prefix):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    return scaled * weights[prefix + ".weight"] + weights[prefix + ".bias"]


def linear(x, weights, prefix):
    return x @ weights[prefix + ".weight"].T + weights[prefix + ".bias"]


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def forward(weights, tokens):
    """Last hidden states [T, 256] of one sequence, and [q, k, v] [T, 4, 64] of each layer."""
    embeddings = "embeddings"
    x = weights[embeddings + ".word_embeddings.weight"][tokens]
    x = x + weights[embeddings + ".position_embeddings.weight"][: len(tokens)]
    x = x + weights[embeddings + ".token_type_embeddings.weight"][0]
    x = normalise(x, weights, embeddings + ".LayerNorm")
    captured = []
    for i in range(NUM_LAYERS):
        layer = f"encoder.layer.{i}"
        heads = [
            linear(x, weights, f"{layer}.attention.self.{role}").reshape(-1, NUM_HEADS, HEAD_SIZE)
            for role in ("query", "key", "value")
        ]
        captured.append(heads)
        q, k, v = (h.transpose(1, 0, 2) for h in heads)
        attended = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(HEAD_SIZE)) @ v
        attended = attended.transpose(1, 0, 2).reshape(-1, WIDTH)
        projected = linear(attended, weights, f"{layer}.attention.output.dense")
        x = normalise(x + projected, weights, f"{layer}.attention.output.LayerNorm")
        inner = gelu(linear(x, weights, f"{layer}.intermediate.dense"))
        x = normalise(x + linear(inner, weights, f"{layer}.output.dense"), weights,
                      f"{layer}.output.LayerNorm")  # fmt: skip
    return x, captured


def check_fingerprint(metadata, reaction, hidden):
    """The package's README prints the first hidden state of its example."""
    text = metadata[metadata.index(reaction) :]
    printed = [float(x) for x in re.search(r"256\s+\[([^\]]+)\]", text).group(1).split(",")]
    error = np.abs(hidden[0, : len(printed)] - printed).max()
    if error > 1e-4:
        raise SystemExit(f"the fingerprint differs from the published one by {error:.2e}")
    return error


def fetch_wheel(folder):
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, PACKAGE],
        check=True,
    )
    return next(pathlib.Path(folder).glob("*.whl"))


def read_model(wheel):
    with zipfile.ZipFile(wheel) as archive:
        weights = read_checkpoint(archive.read(MODEL + "pytorch_model.bin"))
        vocabulary = archive.read(MODEL + "vocab.txt").decode().split("\n")
        metadata = archive.read("rxnfp-0.1.0.dist-info/METADATA").decode()
    weights = {name: w.astype(np.float64) for name, w in weights.items()}
    return weights, {token: i for i, token in enumerate(vocabulary)}, metadata


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--wheel", help="the wheel of the package, instead of pip download")
    parser.add_argument("--readme-only", action="store_true",
                        help="only the reaction of the package's README")  # fmt: skip
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = read_model(arguments.wheel or fetch_wheel(folder))
    weights, vocabulary, metadata = model
    example = re.search(r'example_rxn = "([^"]+)"', metadata).group(1)
    reactions = [example] if arguments.readme_only else [example, *TEXTBOOK]
    lengths, layers = [0], [[[], [], []] for _ in range(NUM_LAYERS)]
    for reaction in reactions:
        pieces = TOKENS.findall(reaction)
        if "".join(pieces) != reaction:
            raise SystemExit(f"{reaction} is not made of tokens")
        tokens = [vocabulary[piece] for piece in ["[CLS]", *pieces, "[SEP]"]]
        hidden, captured = forward(weights, tokens)
        if reaction == example:
            error = check_fingerprint(metadata, reaction, hidden)
            print(f"fingerprint of the README's reaction: within {error:.1e}")
        lengths.append(lengths[-1] + len(tokens))
        for layer, roles in zip(layers, captured):
            for role, rows in zip(layer, roles):
                role.append(rows)
    tensors = {}
    for i, layer in enumerate(layers):
        name = LAYER.format(i)
        for role, rows in zip("qkv", layer):
            bits = np.concatenate(rows).astype(np.float16).view("<u2")
            tensors[f"{name}.{role}"] = safetensors_file.StoredTensor("F16", bits)
        tensors[f"{name}.cu_seqlens"] = safetensors_file.StoredTensor(
            "I32", np.array(lengths, "<i4")
        )
    source = {"source": f"{PACKAGE} ({MODEL}), MIT licence, RXN4Chemistry team / University of Bern"}
    safetensors_file.write(arguments.output, tensors, source)
    print(f"{arguments.output}: {NUM_LAYERS} layers, {lengths[-1]} tokens in {len(reactions)}")


if __name__ == "__main__":
    main()
