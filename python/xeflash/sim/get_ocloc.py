"""Fetches a current ocloc (Intel's offline compiler) from Debian's newest suite into a private folder.

    python -m xeflash.sim.get_ocloc [--mirror URL] [--suite sid] [--folder DIR] [--force]

Packages are unpacked, not installed: nothing outside the folder changes, no root is needed. They come with their own C
library, so they run on older systems. The simulator finds the folder by itself.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

COMPILER = ("intel-ocloc", "libigc2", "libigdfcl2", "libigc2-tools")  # it loads the middle two at run time
PACKAGES = (*COMPILER, "libc6", "libstdc++6", "libgcc-s1", "zlib1g", "libzstd1")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
WRAPPER = """#!/bin/sh
# Runs {program} with the C library that it was built for.
root="$(dirname "$(readlink -f "$0")")/root"
exec "$root/{libraries}/ld-linux-x86-64.so.2" --library-path "$root/{libraries}" "$root/usr/bin/{program}" "$@"
"""


def cache_folder() -> Path:
    """``XEFLASH_CACHE_DIR``, or the user's cache folder."""
    given = os.environ.get("XEFLASH_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xeflash"


def debian_mirror(etc: Path = Path("/etc/apt")) -> str | None:
    """The archive that this machine's own apt uses for Debian proper."""
    lists = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    for path in lists:
        if not path.is_file():
            continue
        text = re.sub(r"(?m)^\s*#.*$", "", path.read_text(errors="replace"))
        for match in re.finditer(r"(?m)^(?:deb\s+(?:\[[^\]]*\]\s+)?|URIs:\s*)((?:https?|file):\S+)", text):
            url = match[1].rstrip("/")
            if url.endswith("/debian"):
                return url
    return None


def run(command: list[str], folder: Path) -> str:
    """The command's output; SystemExit with all of it on failure."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"get_ocloc: {shlex.join(command)} failed:\n{done.stdout[-4000:]}")
    return done.stdout


def private_apt(work: Path, mirror: str, suite: str) -> Path:
    """An apt configuration that knows this suite only and touches nothing of the system's."""
    for name in ("etc/apt.conf.d", "etc/preferences.d", "state/lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    (work / "etc/sources.list").write_text(f"deb {signed}{mirror} {suite} main\n")
    config = work / "apt.conf"
    config.write_text(
        f'Dir::Etc "{work}/etc";\nDir::Etc::sourcelist "{work}/etc/sources.list";\nDir::Etc::sourceparts "-";\n'
        f'Dir::State "{work}/state";\nDir::State::status "/dev/null";\nDir::Cache "{work}/cache";\n'
        'APT::Architecture "amd64";\nAcquire::Languages "none";\nAcquire::Check-Valid-Until "false";\n'
        + ('APT::Sandbox::User "root";\n' if os.geteuid() == 0 else "")
    )
    return config


def with_dependencies(config: Path, work: Path) -> list[str]:
    """The packages and what they depend on."""
    options = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"]
    command = ["apt-cache", "-c", str(config), "depends", "--recurse", *(f"--no-{name}" for name in options), *PACKAGES]
    found = re.findall(r"(?m)^([a-z0-9][a-z0-9+.-]+)(?::\w+)?$", run(command, work))
    return sorted(set(found) | set(PACKAGES))


def write_wrapper(folder: Path, name: str) -> None:
    """A script `name` that runs the unpacked program of that name, whatever version its file name carries."""
    programs = sorted((folder / "root/usr/bin").glob(name + "*"), key=lambda p: len(p.name))
    if not programs:
        raise SystemExit(f"get_ocloc: the packages hold no program {name}")
    script = folder / name
    script.write_text(WRAPPER.format(program=programs[0].name, libraries=LIBRARIES))
    script.chmod(0o755)


def versions(folder: Path) -> str:
    """Runs both programs; what they say about themselves."""
    with tempfile.TemporaryDirectory() as scratch:
        said = run([str(folder / "ocloc"), "query", "OCL_DRIVER_VERSION"], Path(scratch)).strip()
        file = Path(scratch) / "OCL_DRIVER_VERSION"
        ocloc = file.read_text().strip(" \n\0") if file.exists() else said
        iga = run([str(folder / "iga64"), "-h"], Path(scratch)).strip().splitlines()
    return f"ocloc {ocloc}, {iga[0] if iga else 'iga64'}"


def fetch(folder: Path, mirror: str, suite: str) -> str:
    """Fills the folder anew and returns what is in it; the old one stays until the new one works."""
    for tool in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise SystemExit(
                f"get_ocloc: {tool} was not found; without Debian's tools, install ocloc 26 or newer yourself and name "
                "it in XEFLASH_OCLOC"
            )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ocloc-", dir=folder.parent) as scratch:
        work = Path(scratch)
        config = private_apt(work, mirror, suite)
        run(["apt-get", "-c", str(config), "-q", "update"], work)
        packages = work / "packages"
        packages.mkdir()
        run(["apt-get", "-c", str(config), "-q", "download", *with_dependencies(config, work)], packages)
        fresh = work / "fresh"
        fresh.mkdir()
        for package in sorted(packages.glob("*.deb")):
            run(["dpkg-deb", "-x", str(package), str(fresh / "root")], work)
        for name in ("ocloc", "iga64"):
            write_wrapper(fresh, name)
        said = versions(fresh)
        if folder.exists():
            folder.rename(work / "old")
        fresh.rename(folder)
    return said


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="get_ocloc", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--mirror", help="Debian archive (default: the one of this machine's apt sources)")
    parser.add_argument("--suite", default="sid", help="Debian suite to take the packages from (default: sid)")
    parser.add_argument("--folder", type=Path, default=cache_folder() / "ocloc", help="default: %(default)s")
    parser.add_argument("--force", action="store_true", help="fetch again even if what is there works")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    if (folder / "ocloc").exists() and not options.force:
        print(f"{folder}: {versions(folder)} (there already; --force fetches anew)")
        return
    mirror = options.mirror or debian_mirror()
    if mirror is None:
        raise SystemExit("get_ocloc: this machine's apt sources name no Debian archive; give one with --mirror URL")
    print(f"{folder}: {fetch(folder, mirror, options.suite)}")


if __name__ == "__main__":
    main()
