"""A system with nothing but its base packages, as a container image has it, for tests that install packages:
made by debootstrap, entered by chroot. Needs root, debootstrap and the mirror of the distribution.

ATTNBENCH_CLEAN_ROOT names a folder that such a system lies in already (debootstrap --variant=minbase): it is
copied, which takes seconds instead of a minute."""

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SUITE_LIMIT_S = 900
MOUNTED = ("proc", "sys", "dev")


def why_none():
    """Why there can be no such system here; empty where there can."""
    if os.geteuid() != 0:
        return "chroot needs root"
    if "ATTNBENCH_CLEAN_ROOT" not in os.environ and not shutil.which("debootstrap"):
        return "debootstrap is not installed"
    return ""


def codename():
    """Of the distribution of this machine, whose packages are tried."""
    lines = Path("/etc/os-release").read_text().splitlines()
    return next(line.split("=")[1].strip('"') for line in lines if line.startswith("VERSION_CODENAME="))


@functools.cache
def pristine():
    """The system that every one is a copy of, made once by whoever asks first."""
    if "ATTNBENCH_CLEAN_ROOT" in os.environ:
        return os.environ["ATTNBENCH_CLEAN_ROOT"]
    scratch = tempfile.TemporaryDirectory()  # goes with the process
    pristine.scratch = scratch
    root = Path(scratch.name) / "pristine"
    subprocess.run(["debootstrap", "--variant=minbase", codename(), root], check=True,
                   capture_output=True, timeout=SUITE_LIMIT_S)  # fmt: skip
    return root


class CleanRoot:
    """A fresh system below `folder`, which must not exist."""

    def __init__(self, folder):
        self.path = Path(folder)
        subprocess.run(["cp", "-a", pristine(), self.path], check=True, timeout=SUITE_LIMIT_S)
        # A name server is what the kernel of a container gives it.
        shutil.copy("/etc/resolv.conf", self.path / "etc" / "resolv.conf")

    def sh(self, script, cwd="/", limit_s=SUITE_LIMIT_S, **variables):
        """Runs a shell script inside, as root, as `RUN` of a Dockerfile does; the process as it ended.
        What is mounted for it goes with it."""
        mounts = "".join(f"mount --rbind /{name} {self.path}/{name}\n" for name in MOUNTED)
        outside = (f"set -e\nmount --make-rprivate /\n{mounts}"
                   'exec chroot "$0" /usr/bin/env -i PATH="$PATH" HOME=/root LANG=C.UTF-8 '
                   'DEBIAN_FRONTEND=noninteractive "$@"')  # fmt: skip
        assigned = [f"{key}={value}" for key, value in variables.items()]
        words = ["unshare", "-m", "sh", "-c", outside, self.path, *assigned,
                 "/bin/sh", "-ec", f"cd {cwd}\n{script}"]  # fmt: skip
        return subprocess.run([str(word) for word in words], capture_output=True, text=True,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, timeout=limit_s)  # fmt: skip

    def file(self, path):
        """A path of the system as this one sees it."""
        return self.path / str(path).lstrip("/")
