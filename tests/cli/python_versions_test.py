"""What `version` of a result says of a Python class without a version of its own: those of the packages
that it runs, by whatever distribution they came. The distributions are folders as pip and others leave
them; what they bring is imported nowhere but where a case says so.
"""

import json
import subprocess
import unittest

from pythons import FAKE_TORCH, PACKAGE_DIR, NumpyTest
from tool import ROOT, TIME_LIMIT_S, TINY

UNIMPORTED = "raise ImportError('imported')\n"
CLASS = """\
class Mine:
    packages = PACKAGES

    def prepare(self, problem, tensors):
        pass

    def run(self):
        pass
"""


class Versions(NumpyTest):
    def install(self, name, version, *files, folder="site", record=True, **more):
        """A distribution in `folder` with these files, the facts of `more` beside its METADATA."""
        info = f"{folder}/{name.replace('-', '_')}-{version}.dist-info"
        self.write(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for file in files:
            self.write(f"{folder}/{file}", UNIMPORTED)
        if record:
            self.write(f"{info}/RECORD", "".join(f"{file},sha256=abc,30\n" for file in files))
        for fact, text in more.items():
            self.write(f"{info}/{fact.replace('__', '.')}", text)

    def version(self, *packages, path=("site",), code=CLASS):
        """What describe.py, which the program runs, says of a class that needs these packages."""
        self.write("mine.py", code.replace("PACKAGES", repr(packages)))
        describe = PACKAGE_DIR / "attnbench" / "describe.py"
        self.modules = [self.dir / folder for folder in path]
        done = subprocess.run([self.python, describe, "mine:Mine"], cwd=self.dir, text=True,
                              env=self.environment(), capture_output=True, timeout=TIME_LIMIT_S)  # fmt: skip
        facts = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        self.assertIn("version", facts, done.stdout + done.stderr)
        return facts["version"]

    def test_a_distribution_with_another_name_than_its_package(self):
        self.install("flashx-python", "0.7.2.post1", "flashx/__init__.py", "flashx/jit/__init__.py")
        self.install("fx3-fwd", "0.0.3", "fx3_fwd/_C.so", "fx3_fwd_interface.py")
        self.assertEqual(self.version("flashx", "fx3_fwd_interface"),
                         "flashx 0.7.2.post1, fx3_fwd_interface 0.0.3")  # fmt: skip

    def test_two_distributions_share_a_package(self):
        """As flash-attn and flash-attn-4 do: what counts is who brought the module."""
        self.install("fx", "2.8.3", "fx/__init__.py", "fx/ops/__init__.py")
        self.install("fx-4", "4.0.0", "fx/cute/__init__.py", "fx/cute/interface.py",
                     top_level__txt="fx\n")  # fmt: skip
        self.write("site/fx/__init__.py", "")  # the parent is imported to find what is in it
        names = ("fx", "fx.ops", "fx.cute", "fx.cute.interface")
        self.write("site/fx/cute/__init__.py", "")
        self.assertEqual(self.version(*names),
                         "fx 2.8.3, fx.ops 2.8.3, fx.cute 4.0.0, fx.cute.interface 4.0.0")  # fmt: skip

    def test_without_a_record_the_top_level_names_count_or_else_its_own(self):
        """Debian's packages have none."""
        self.install("PyFx", "6.0", "fx/__init__.py", record=False, top_level__txt="_fx\nfx\n")
        self.install("other-fx", "7.0", "other_fx.py", record=False)
        self.assertEqual(self.version("fx", "other_fx"), "fx 6.0, other_fx 7.0")
        self.install("unrelated", "8.0", "third.py", record=False, top_level__txt="unrelated\n")
        self.assertEqual(self.version("third"), "0")

    def test_an_editable_installation_is_known_by_its_source_folder(self):
        self.write("my source/fx/__init__.py", UNIMPORTED)
        url = (self.dir.resolve() / "my source").as_uri()
        facts = json.dumps({"url": url, "dir_info": {"editable": True}})
        self.install("fx-python", "1.2.dev3", direct_url__json=facts)
        self.assertEqual(self.version("fx", path=("site", "my source")), "fx 1.2.dev3")
        self.install("fx-python", "1.2.dev3", direct_url__json=facts.replace("true", "false"))
        self.assertEqual(self.version("fx", path=("site", "my source")), "0")

    def test_one_that_is_hidden_by_another_of_the_same_name_is_not_what_runs(self):
        self.install("fx", "2.8.3", "fx/__init__.py")
        self.install("older-fx", "1.0", "fy.py", record=False, top_level__txt="fy\n")
        self.write("checkout/fx/__init__.py", UNIMPORTED)
        self.write("checkout/fy.py", UNIMPORTED)
        self.assertEqual(self.version("fx", "fy", path=("checkout", "site")), "0")
        self.assertEqual(self.version("fx", "fy", path=("site", "checkout")), "fx 2.8.3, fy 1.0")

    def test_what_no_distribution_brought_says_its_own_version_where_the_class_imports_it(self):
        self.write("site/fx.py", "__version__ = '3.1+built.here'\n")
        self.assertEqual(self.version("fx", "no_such_package", "no.such_package"), "0")
        self.assertEqual(self.version("fx", code="import fx\n" + CLASS), "fx 3.1+built.here")

    def test_the_own_version_of_a_class_goes_first(self):
        self.install("fx", "2.8.3", "fx/__init__.py")
        own = CLASS.replace("packages", "version = 'mine 5'\n    packages")
        self.assertEqual(self.version("fx", code=own), "mine 5")

    def test_the_result_has_it(self):
        self.install("flashx-python", "0.7.2", "flashx.py")
        right = (ROOT / "tests" / "python" / "numpy_attention.py").read_text(encoding="utf-8")
        self.write("mine.py", right + "\n\nclass Mine(Right):\n    version = ''\n    packages = ('flashx',)\n")
        self.modules = [FAKE_TORCH, self.dir / "site"]
        result = self.run_classes(TINY.replace("bfloat16", "float32"), "Mine")["Mine"]
        self.assertEqual(result["plugin"]["version"], "flashx 0.7.2")


if __name__ == "__main__":
    unittest.main()
