"""For the tests of calibrate and scales: tensors as files, and what they should come to, by numpy."""

import json

import numpy as np

from tool import ToolTest, strict_json

from opinion import number_formats, safetensors_file

SEED = 5


def outliers(generator, tokens, heads, size, channel=3):
    """Normal values with one channel that is 30 times as large, as bfloat16 has them."""
    values = generator.standard_normal((tokens, heads, size))
    values[:, :, channel % size] *= 30
    return number_formats.decode("BF16", number_formats.encode_bf16(values))


def layer_tensors(seed=SEED, tokens=40, heads=4, kv_heads=2, size=24):
    generator = np.random.default_rng(seed)
    return {
        "q": outliers(generator, tokens, heads, size, 1),
        "k": outliers(generator, tokens, kv_heads, size, 5),
        "v": outliers(generator, tokens, kv_heads, size, 7),
    }


def stored(values, dtype="BF16"):
    if dtype == "BF16":
        return safetensors_file.StoredTensor(dtype, number_formats.encode_bf16(values))
    return safetensors_file.StoredTensor(dtype, values.astype(safetensors_file.STORAGE[dtype]))


def e4m3(values, scale, reciprocal=False):
    """What values read back as, in float32 as the kernels compute."""
    values = values.astype(np.float32)
    scale = np.float32(scale)
    scaled = values * (np.float32(1) / scale) if reciprocal else values / scale
    return number_formats.decode("F8_E4M3", number_formats.encode_e4m3(scaled)) * scale


def attention(q, k, v, lengths, causal=False, allowed=None, sinks=None):
    """Float64 attention of sequences that lie one behind the other; `allowed(p, j)`, of arrays of
    positions, says which keys a query sees."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    output = np.zeros((q.shape[0], q.shape[1], v.shape[2]))
    begin = 0
    for length in lengths:
        rows = slice(begin, begin + length)
        for head in range(q.shape[1]):
            scores = q[rows, head] @ k[rows, head // group].T / np.sqrt(q.shape[2])
            if causal:
                scores[np.triu_indices(length, 1)] = -np.inf
            if allowed is not None:
                scores[~allowed(*np.indices(scores.shape))] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            sink = 0 if sinks is None else np.exp(sinks[head] - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True) + sink
            output[rows, head] = weights @ v[rows, head // group]
        begin += length
    return output


def rms_rel(output, reference):
    return np.linalg.norm(output - reference) / np.linalg.norm(reference)


class CalibrationTest(ToolTest):
    def save(self, name, layers, dtype="BF16", **more):
        """Writes {layer: {role: values}} and returns the path; `more` are lengths by tensor name."""
        tensors = {}
        for layer, roles in layers.items():
            for role, values in roles.items():
                tensors[f"{layer}.{role}"] = stored(values, dtype)
        for tensor, lengths in more.items():
            tensors[tensor.replace("__", ".")] = stored(np.array(lengths), "I32")
        path = self.dir / name
        safetensors_file.write(path, tensors, {})
        return path

    def save_result(self, attention, tensors, backend="REFERENCE", metadata=None, **more):
        """A file as `run --save-tensors` writes it; `attention` is that part of its problem."""
        stored_tensors = {name: stored(tensors[name[0]]) for name in ("query", "key", "value")}
        length = len(tensors["q"])
        stored_tensors["query_start_loc"] = stored(np.array([0, length]), "I32")
        stored_tensors["seq_lens"] = stored(np.array([len(tensors["k"])]), "I32")
        stored_tensors.update((n, stored(np.array(v), "F32")) for n, v in more.items())
        problem = attention if isinstance(attention, str) else json.dumps({"attention": attention})
        path = self.dir / "saved.safetensors"
        metadata = {"problem": problem, "backend": backend, **(metadata or {})}
        safetensors_file.write(path, stored_tensors, metadata)
        return path

    def calibrate(self, code, *arguments, output="out.json"):
        return self.expect(code, "calibrate", *arguments, "--output", output)

    def layer(self, path, *arguments):
        """The report of the only layer, its error over every row."""
        outcome = self.calibrate(0, "--tensors", path, "--max-rows", "1000", "--json", "-",
                                 "--force", *arguments)  # fmt: skip
        (layer,) = strict_json(outcome.out)["layers"]
        return layer

    def refused(self, words, *arguments):
        """Exit 2, the words on stderr, and not a file that was not there before."""
        before = self.files()
        outcome = self.calibrate(2, *arguments, "--json", "report.json")
        for word in words:
            self.assertIn(word, outcome.err)
        self.assertEqual(self.files(), before)
