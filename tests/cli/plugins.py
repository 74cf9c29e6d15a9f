"""What the tests of users' libraries share: the libraries of the build folder (examples/plugin,
tests/plugins), tiny ones that are compiled here, and runs with them.
"""

import subprocess
import tempfile
import unittest
from pathlib import Path

from tool import BINARY, ROOT, TIME_LIMIT_S, ToolTest, strict_json

PLUGINS = Path(BINARY).resolve().parent / "plugins"
NAIVE = PLUGINS / "libnaive_attention.so"
FAULTY = PLUGINS / "libfaulty_plugin.so"
HEADER_DIR = ROOT / "src" / "plugin"

# Seconds of silence after which a case that hangs is ended; what runs beside it takes milliseconds.
HANG_LIMIT = 5
# Rows that see no key: an encoder output of no tokens, and a request without new ones.
CROSS = """\
schema: 1
name: cross
attention: {type: encoder_decoder, num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: float32}
batch:
  - - {count: 2, query_len: 3, seq_len: 0}
    - {count: 1, query_len: 5, seq_len: 40}
    - {count: 1, query_len: 0, seq_len: 7}
timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}
"""
# The least table that is complete, in C; {change} spoils it.
MINIMAL = """\
#include "attnbench_backend.h"
static const char* prepare(const AttnbenchBackend* self, const AttnbenchProblem* problem,
                           const AttnbenchTensors* tensors, const AttnbenchHost* host,
                           void** state) {
  (void)self, (void)problem, (void)tensors, (void)host, (void)state;
  return NULL;
}
static const char* run(void* state, void* stream) {
  (void)state, (void)stream;
  return NULL;
}
const AttnbenchBackend* attnbench_backend(uint32_t index) {
  static AttnbenchBackend table;
  table.struct_size = sizeof table;
  table.abi_version = ATTNBENCH_ABI_VERSION;
  table.name = "MINE";
  table.version = "1";
  table.devices = ATTNBENCH_CPU;
  table.attention_types = ATTNBENCH_DECODER;
  table.dtypes = ATTNBENCH_BFLOAT16;
  table.prepare = prepare;
  table.run = run;
  CHANGE;
  return index == 0 ? &table : NULL;
}
"""


def library_from_c(source, target, *options):
    """Compiles C to a shared library, without a warning."""
    subprocess.run(
        ["gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared", "-fPIC",
         "-I", HEADER_DIR, "-x", "c", "-", "-o", target, *options],
        input=source, text=True, check=True, timeout=TIME_LIMIT_S,
    )  # fmt: skip
    return target


@unittest.skipUnless(NAIVE.exists(), "the binary is not in a build folder with plugins")
class PluginTest(ToolTest):
    @staticmethod
    def run_beside(scenario, *arguments):
        """One run that several tests look at: the finished process, and its results by backend."""
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch, "scenario.yaml")
            file.write_text(scenario)
            done = subprocess.run(
                [BINARY, "run", file, "--device", "cpu", "--no-timing", "--json", "-", *arguments],
                capture_output=True, text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        return done, {r["backend"]: r for r in strict_json(done.stdout)["results"]}

    def run_plugin(self, scenario, library, *arguments, code=0):
        self.write("scenario.yaml", scenario)
        results = self.results("scenario.yaml", "--device", "cpu", "--plugin", library, *arguments,
                               code=code)  # fmt: skip
        return {id.split("/")[2]: result for id, result in results.items()}
