"""Recorded outputs of vLLM's own kernels: the reference gives their reference values, and
TRITON_ATTN their outputs. ATTNBENCH_GOLDEN_DIR names the folder of the recordings."""

import json
import os
import unittest
from pathlib import Path

import numpy as np

from tool import ToolTest

from opinion import number_formats, safetensors_file

GOLDEN_DIR = os.environ.get("ATTNBENCH_GOLDEN_DIR")
# Float32 keeps 24 bits; the recording computed in float64 and was rounded once when stored.
FLOAT32_EPSILON = 2.0**-23


def floats(tensor):
    return number_formats.decode(tensor.dtype, tensor.raw).astype(np.float64)


def scenario_of(file, problem):
    """The scenario, as JSON, that replays a recording from its metadata."""
    attention = {key: value for key, value in problem["attention"].items() if key != "sinks"}
    ranges = attention.pop("mm_prefix_ranges")
    attention["mm_prefix_ranges"] = {int(request): value for request, value in ranges.items()}
    # Recordings name every scale; a scenario may name those that its cache has.
    has_scales = problem["kv_cache"]["dtype"] in ("fp8", "fp8_e4m3", "fp8_e5m2")
    cache = {key: value for key, value in problem["kv_cache"].items()
             if has_scales or not key.endswith("_scale")}  # fmt: skip
    return {
        "schema": 1,
        "name": "golden",
        "attention": attention,
        "triton": {"path": problem["path"].lower()},
        "kv_cache": cache,
        "batch": problem["batch"],
        "inputs": {"file": str(file)},
        "backends": ["TRITON_ATTN"],
    }


@unittest.skipUnless(GOLDEN_DIR, "ATTNBENCH_GOLDEN_DIR is not set")
class Golden(ToolTest):
    def replay(self, file, problem):
        self.write("golden.json", json.dumps(scenario_of(file, problem)))
        (result,) = self.results(
            "golden.json", "--no-timing", "--save-tensors", "tensors"
        ).values()
        (saved,) = (self.dir / "tensors").iterdir()
        tensors, _ = safetensors_file.read(saved)
        saved.unlink()
        return result, tensors

    def check(self, file):
        recorded, metadata = safetensors_file.read(file)
        problem = json.loads(metadata["problem"])
        result, saved = self.replay(file, problem)
        self.assertEqual(result["status"], "passed", result["reasons"])

        for name in ("reference_output", "reference_lse"):
            ours, theirs = floats(saved[name]), floats(recorded[name])
            finite = np.isfinite(theirs)
            np.testing.assert_array_equal(ours[~finite], theirs[~finite])
            scale = np.abs(theirs[finite]).max()
            np.testing.assert_allclose(
                ours[finite], theirs[finite], rtol=4 * FLOAT32_EPSILON,
                atol=FLOAT32_EPSILON * scale, err_msg=name,
            )  # fmt: skip

        # Two outputs that are each as near to the truth as the recorded kernel may lie on both
        # sides of it.
        reference = floats(recorded["reference_output"])
        ours, theirs = floats(saved["output"]), floats(recorded["output"])
        norm = np.linalg.norm(reference)
        self.assertLessEqual(
            np.linalg.norm(ours - theirs) / norm, 1.5 * problem["triton_rms_rel"]
        )
        self.assertLessEqual(np.abs(ours - theirs).max(), 2 * problem["triton_max_abs"])
        self.assertLessEqual(
            np.linalg.norm(ours - reference) / norm, 1.25 * problem["triton_rms_rel"]
        )

    def test_every_recording_is_reproduced(self):
        files = sorted(Path(GOLDEN_DIR).glob("*.safetensors"))
        self.assertTrue(files, f"no recordings in {GOLDEN_DIR}")
        for file in files:
            with self.subTest(file.name):
                self.check(file)


if __name__ == "__main__":
    unittest.main()
