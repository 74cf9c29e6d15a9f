"""The packages, built as users build them and tried where nothing else of this project is.

Takes many minutes, because each is built from source without -march=native: ./scripts/test -L package.
ATTNBENCH_DEB, ATTNBENCH_DEB_CUDA and ATTNBENCH_WHEEL name packages that are there already, which are then only
tried.
"""

import functools
import glob
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import unittest
import venv
from pathlib import Path

from clean_root import CleanRoot, why_none
from recipes import copy_context, dockerfile_stages, workflow_commands

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "attnbench.yml"
BUILD_LIMIT_S = 3000
RUN_LIMIT_S = 300
SCENARIO = """\
schema: 1
name: tiny
attention: {type: decoder, num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: bfloat16}
batch: q32_4q1s100
"""


def run(*words, code=0, timeout=RUN_LIMIT_S, **options):
    """Runs a command and returns its standard output; its exit code has to be `code`."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          timeout=timeout, **options)  # fmt: skip
    if done.returncode != code:
        raise AssertionError(f"{words}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def has_toolkit():
    return bool(shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc"))


@functools.cache
def set_up():
    """What every build needs, as the README, the Dockerfile and the workflow install it."""
    run(ROOT / "scripts" / "setup.sh", timeout=BUILD_LIMIT_S)


def succeed(root, script, **options):
    """Runs a script in a clean system and returns its standard output; it has to succeed."""
    done = root.sh(script, **options)
    if done.returncode != 0:
        raise AssertionError(f"{script}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def package_of_image():
    """The .deb that the first stage of the Dockerfile builds, its instructions done one by one in a system
    that has nothing but base packages."""
    folder = tempfile.TemporaryDirectory()
    package_of_image.folder = folder  # goes with the process
    root = CleanRoot(Path(folder.name) / "build")
    cwd = "/"
    for word, text in dockerfile_stages(ROOT / "Dockerfile", PRESET="package-cpu")[0].instructions:
        if word == "COPY":
            source, target = text.split()
            assert source == ".", text
            copy_context(ROOT, root.file(target))
        elif word == "WORKDIR":
            cwd = text
            root.file(text).mkdir(parents=True, exist_ok=True)
        elif word == "RUN":
            succeed(root, text, cwd=cwd, limit_s=BUILD_LIMIT_S)
        else:
            raise AssertionError(f"{word} in the first stage of the Dockerfile")
    (package,) = root.file("/packages").glob("*.deb")
    return package


@functools.cache
def debian_package(preset):
    """The .deb of a preset: that of ATTNBENCH_DEB or ATTNBENCH_DEB_CUDA, else built from this source tree;
    the one without CUDA as the Dockerfile builds it, where a clean system can be made."""
    named = os.environ.get("ATTNBENCH_DEB" if preset == "package-cpu" else "ATTNBENCH_DEB_CUDA")
    if named:
        return named
    if preset == "package-cpu" and not why_none():
        return package_of_image()
    set_up()
    build = ROOT / f"build-{preset}"
    run("cmake", "--preset", preset, "-B", build, cwd=ROOT)
    run("cmake", "--build", build, "--target", "attnbench", cwd=ROOT, timeout=BUILD_LIMIT_S)
    run("cpack", "--config", build / "CPackConfig.cmake", "-B", build / "packages", cwd=build)
    return max(glob.glob(str(build / "packages" / "*.deb")), key=os.path.getmtime)


def environment(**changes):
    """Without what would lead the program to the source tree or to another interpreter."""
    left_out = ("ATTNBENCH_BIN", "ATTNBENCH_PYTHON", "PYTHONPATH", "VIRTUAL_ENV")
    return {**{k: v for k, v in os.environ.items() if k not in left_out}, **changes}


class PackageTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = Path(scratch.name)

    def newest(self, pattern):
        found = sorted(glob.glob(str(pattern)), key=os.path.getmtime)
        self.assertTrue(found, f"no file {pattern}")
        return found[-1]

    def check_results(self, text):
        results = json.loads(text)["results"]
        self.assertEqual({result["status"] for result in results}, {"passed"})
        self.assertIn("FLASH_ATTN", [result["backend"] for result in results])


class Wheel(PackageTest):
    """In a virtual environment of its own, away from the source tree."""

    def wheel(self):
        if "ATTNBENCH_WHEEL" in os.environ:
            return os.environ["ATTNBENCH_WHEEL"]
        set_up()
        # With the pip of a new environment, as the interpreter of a distribution may have none.
        venv.create(self.dir / "builder", with_pip=True)
        run(self.dir / "builder" / "bin" / "python", "-m", "pip", "wheel", ROOT, "--no-deps", "-w", self.dir,
            timeout=BUILD_LIMIT_S, cwd=self.dir, env=environment())  # fmt: skip
        return self.newest(self.dir / "attnbench-*.whl")

    def test_the_wheel_brings_program_scenarios_header_and_adapters(self):
        wheel = Path(self.wheel())
        self.assertRegex(wheel.name, r"^attnbench-[0-9.]+-py3-none-.*\.whl$")
        venv.create(self.dir / "venv", with_pip=True, system_site_packages=False)
        python = self.dir / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel)
        empty = self.dir / "empty"
        empty.mkdir()
        (empty / "tiny.yaml").write_text(SCENARIO)

        def attnbench(*words, **options):
            return run(*words, cwd=empty, env=environment(PATH="/usr/bin:/bin"), **options)

        command = self.dir / "venv" / "bin" / "attnbench"
        self.assertEqual(attnbench(python, "-m", "attnbench", "-V"), attnbench(command, "-V"))
        self.assertIn(wheel.name.split("-")[1], attnbench(command, "-V"))
        self.check_results(attnbench(command, "run", "tiny.yaml", "--no-timing", "--device", "cpu",
                                     "--json", "-"))  # fmt: skip
        self.assertIn("models/llama-3.1-8b", attnbench(command, "list", "scenarios", "--names"))
        self.assertIn("(1 case)", attnbench(command, "validate", "models/llama-3.1-8b"))
        attnbench(command, "nonsense", code=2)
        attnbench(python, "-m", "attnbench", "run", "no-such-file", code=2)
        package = Path(attnbench(python, "-c", "import attnbench; print(attnbench.__file__)").strip()).parent
        self.assertTrue((package / "include" / "attnbench_backend.h").is_file())
        self.assertTrue((package / "adapters" / "torch_sdpa.py").is_file())
        found = attnbench(python, "-c", "import attnbench; print(attnbench.find_program())").strip()
        self.assertEqual(Path(found), package / "bin" / "attnbench")
        # Nothing but the C library, so that any distribution with as new a one will do.
        needed = run("ldd", found)
        for library in ("libstdc++", "libfmt", "libyaml"):
            self.assertNotIn(library, needed)


class Deb(PackageTest):
    """Unpacked below a root of its own, in which the program runs by chroot where this is allowed."""

    preset, package = "package-cpu", "attnbench"

    def fill_root(self, deb):
        """The package, a shell, and the libraries that the package says it needs: nothing else."""
        root = self.dir / "root"
        run("dpkg-deb", "-x", deb, root)
        libraries = [word for line in run("ldd", root / "usr/bin/attnbench").splitlines()
                     for word in line.split() if word.startswith("/")]  # fmt: skip
        for library in libraries:
            target = root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
        for folder in ("tmp", "proc", "work"):
            (root / folder).mkdir()
        (root / "work" / "tiny.yaml").write_text(SCENARIO)
        return root

    def test_the_package_runs_where_nothing_else_is(self):
        deb = debian_package(self.preset)
        fields = run("dpkg-deb", "-f", deb)
        self.assertIn(f"Package: {self.package}\n", fields)
        # As the workflow names it.
        self.assertTrue(Path(deb).name.startswith(f"{self.package}_"), deb)
        self.assertRegex(fields, r"(?m)^Maintainer: .* <.*@.*>$")
        self.assertRegex(fields, r"(?m)^Depends: .*libc6")
        files = run("dpkg-deb", "-c", deb)
        for path in ("usr/bin/attnbench", "usr/include/attnbench_backend.h",
                     "usr/share/attnbench/scenarios/decode.yaml",
                     "usr/share/attnbench/python/attnbench/adapter.py",
                     "usr/share/man/man1/attnbench.1",
                     "usr/share/bash-completion/completions/attnbench",
                     "usr/share/zsh/vendor-completions/_attnbench",
                     "usr/share/fish/vendor_completions.d/attnbench.fish"):  # fmt: skip
            self.assertIn(f" ./{path}", files)
        self.assertIn("/copyright\n", files)
        self.assertIn("docs/plugins.md\n", files)
        root = self.fill_root(deb)
        self.assertIn('complete -F _attnbench attnbench',
                      (root / "usr/share/bash-completion/completions/attnbench").read_text())  # fmt: skip
        if os.geteuid() != 0:
            self.skipTest("chroot needs root")

        def inside(*words):
            return run("unshare", "-m", "sh", "-c",
                       f'mount -t proc proc {root}/proc && exec chroot {root} /usr/bin/attnbench "$@"',
                       "-", *words)  # fmt: skip

        self.check_results(inside("run", "/work/tiny.yaml", "--no-timing", "--device", "cpu", "--json", "-"))
        self.assertIn("quickstart", inside("list", "scenarios", "--names"))
        self.assertIn("(3 cases)", inside("validate", "quickstart"))


class DebWithCuda(Deb):
    """The same with the CUDA toolkit, where there is one; no GPU is needed to build it or to run it."""

    preset, package = "package", "attnbench-cuda"

    def setUp(self):
        if "ATTNBENCH_DEB_CUDA" not in os.environ and not has_toolkit():
            self.skipTest("no CUDA toolkit")
        super().setUp()


class InCleanRoot(PackageTest):
    """The package where a user installs it: a system of its own with nothing but base packages, in which the
    Dockerfile and the workflow are followed to the letter. Both times with apt and the mirror."""

    def setUp(self):
        if why_none():
            self.skipTest(why_none())
        super().setUp()

    def installed(self, deb):
        """A system after the last stage of the Dockerfile."""
        stage = dockerfile_stages(ROOT / "Dockerfile")[-1]
        root = CleanRoot(self.dir / "root")
        for word, text in stage.instructions:
            if word == "COPY":
                self.assertEqual(text, "--from=build /packages/*.deb /tmp/")
                shutil.copy(deb, root.file("/tmp"))
            elif word == "RUN":
                succeed(root, text)
            elif word == "WORKDIR":
                root.file(text).mkdir(exist_ok=True)
        self.workdir, self.entry = stage.of("WORKDIR")[0], json.loads(stage.of("ENTRYPOINT")[0])
        self.default = json.loads(stage.of("CMD")[0])
        return root

    def check_image(self, root):
        """What the first lines of the Dockerfile and the README say to do with it."""

        def run_image(*words):
            return succeed(root, shlex.join([*self.entry, *(words or self.default)]), cwd=self.workdir)

        self.assertIn("Usage:", run_image())
        (root.file(self.workdir) / "tiny.yaml").write_text(SCENARIO)
        run_image("run", "tiny.yaml", "--json", "results.json", "--device", "cpu", "--samples", "3")
        self.check_results((root.file(self.workdir) / "results.json").read_text())
        self.assertIn("(3 cases)", run_image("validate", "quickstart"))

    def check_workflow(self, root, deb):
        """The jobs that use the package. A GPU's are done on the CPU, with a small scenario in place of theirs;
        the second night is compared with the first."""
        # What the runners of a CI have besides.
        succeed(root, "apt-get update && apt-get install -y --no-install-recommends sudo")
        jobs = workflow_commands(WORKFLOW)
        github = {"GITHUB_STEP_SUMMARY": "/ci/summary-of-job", "GITHUB_SERVER_URL": "https://ci.example",
                  "GITHUB_REPOSITORY": "some/one", "GITHUB_RUN_ID": "7"}  # fmt: skip
        root.file("/ci").mkdir()
        shutil.copy(deb, root.file("/ci"))
        for script in jobs["correctness"]:
            succeed(root, script, cwd="/ci", **github)
        for name in ("results.json", "junit.xml", "summary.md", "report.html", "summary-of-job"):
            self.assertTrue((root.file("/ci") / name).stat().st_size > 0, name)
        self.check_results((root.file("/ci") / "results.json").read_text())
        (root.file("/ci") / "tiny.yaml").write_text(SCENARIO)
        _, *speed = jobs["speed"]
        for night in range(2):
            for script in speed:
                script = script.replace("run decode prefill --device cuda", "run tiny.yaml --device cpu --samples 5")
                done = root.sh(script, cwd="/ci", **github)
                # What another program does to a time is no fault of the recipe.
                self.assertIn(done.returncode, (0, 1) if night else (0,), done.stdout + done.stderr)
                self.assertNotIn("unknown option", done.stderr)
        history = (root.file("/root") / "attnbench-history.jsonl").read_text().splitlines()
        self.assertGreaterEqual(len(history), 2 * len(json.loads((root.file("/ci") / "results.json").read_text())["results"]))
        self.assertIn("attnbench gate: ", (root.file("/ci") / "summary-of-job").read_text())

    def check_removal(self, root, package):
        succeed(root, f"apt-get remove -y {package}")
        self.assertFalse(root.file("/usr/share/attnbench").exists())

    def test_the_dockerfile_and_the_workflow_work_with_the_package(self):
        deb = debian_package("package-cpu")
        root = self.installed(deb)
        self.check_image(root)
        self.check_removal(root, "attnbench")
        self.check_workflow(root, deb)

    def test_the_package_with_cuda_takes_the_place_of_the_other(self):
        if "ATTNBENCH_DEB_CUDA" not in os.environ and not has_toolkit():
            self.skipTest("no CUDA toolkit")
        root = self.installed(debian_package("package-cpu"))
        install, *_ = workflow_commands(WORKFLOW)["speed"]
        self.assertTrue(install.startswith("sudo "), install)
        shutil.copy(debian_package("package"), root.file(self.workdir))
        succeed(root, "apt-get update")
        # Of a runner of one's own, whose user is root here.
        succeed(root, install.removeprefix("sudo "), cwd=self.workdir)
        self.check_image(root)
        self.assertIn("attnbench-cuda", succeed(root, "dpkg -S /usr/bin/attnbench"))
        # Without a driver it says what is missing.
        done = root.sh(shlex.join([*self.entry, "run", "quickstart", "--device", "cuda"]))
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.check_removal(root, "attnbench-cuda")


if __name__ == "__main__":
    unittest.main()
