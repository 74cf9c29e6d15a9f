"""The Dockerfile and the workflow for a CI, as texts: that they say the same, and name what is there. What they
do is tried by packages_test.py."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from recipes import commands, copy_context, dockerfile_stages, is_ignored, workflow_commands

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cli"))

from tool import skip_without  # noqa: E402

WORKFLOW = ROOT / ".github" / "workflows" / "attnbench.yml"


class Recipes(unittest.TestCase):
    def test_the_workflow_builds_its_packages_as_the_dockerfile_does(self):
        if importlib.util.find_spec("yaml") is None:
            skip_without("python3-yaml")
        jobs = workflow_commands(WORKFLOW)
        for job, preset in (("package", "package-cpu"), ("package-cuda", "package")):
            build = dockerfile_stages(ROOT / "Dockerfile", PRESET=preset)[0].of("RUN")
            docker = [re.sub(r" -B /packages$", "", command) for text in build for command in commands(text)]
            self.assertEqual([command for text in jobs[job] for command in commands(text)], docker)

    def test_scripts_that_are_called_by_their_path_may_be_run(self):
        for text in (WORKFLOW.read_text(), (ROOT / "Dockerfile").read_text(), (ROOT / "README.md").read_text()):
            for script in set(re.findall(r"\./(scripts/[\w.]+)", text)):
                self.assertTrue(os.access(ROOT / script, os.X_OK), script)

    def test_the_image_is_built_without_what_was_built_here(self):
        patterns = (ROOT / ".dockerignore").read_text().split()
        for path in ("build", "build-package-cpu/attnbench", ".git/HEAD", "src/x/__pycache__/y.pyc"):
            self.assertTrue(is_ignored(path, patterns), path)
        with tempfile.TemporaryDirectory() as scratch:
            source, target = Path(scratch) / "source", Path(scratch) / "target"
            for path in ("build/attnbench", "benchmarks/b.cpp", "src/a.cpp", "src/build.h"):
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                (source / path).touch()
            shutil.copy(ROOT / ".dockerignore", source)
            copy_context(source, target)
            copied = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
            self.assertEqual(copied, {".dockerignore", "benchmarks/b.cpp", "src/a.cpp", "src/build.h"})

    def test_set_up_installs_the_tools_by_which_cpack_finds_what_a_package_depends_on(self):
        listed = subprocess.run(["bash", "-c", f'source {ROOT}/scripts/setup.sh && echo "${{PACKAGES[@]}}"'],
                                capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
        for tool, package in (("dpkg-shlibdeps", "dpkg-dev"), ("file", "file")):
            self.assertIn(package, listed, tool)

    def test_the_image_runs_the_program_where_the_users_files_are(self):
        last = dockerfile_stages(ROOT / "Dockerfile")[-1]
        self.assertEqual(last.of("WORKDIR"), ["/work"])
        self.assertEqual(json.loads(last.of("ENTRYPOINT")[0]), ["attnbench"])
        self.assertIn('-v "$PWD:/work"', (ROOT / "Dockerfile").read_text())


if __name__ == "__main__":
    unittest.main()
