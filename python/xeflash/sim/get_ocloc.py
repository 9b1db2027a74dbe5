"""Fetches a current ocloc (Intel's offline compiler) from Debian's newest suite into a private folder.

    python -m xeflash.sim.get_ocloc [--mirror URL] [--suite sid] [--folder DIR] [--force]

Packages are unpacked, not installed: nothing outside the folder changes, no root is needed. They come with their own C
library, so they run on older systems. The simulator finds the folder by itself. Needs apt's and dpkg's programs, which
Debian and Ubuntu have; Debian's keys check what is fetched, and where they are not installed (Ubuntu), they come from
the system's own archive (package debian-archive-keyring).
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from xeflash.runtime.cache_folder import cache_folder, open_folder

COMPILER = ("intel-ocloc", "libigc2", "libigdfcl2", "libigc2-tools")  # ocloc loads the middle two at run time
PACKAGES = (*COMPILER, "libc6", "libstdc++6", "libgcc-s1", "zlib1g", "libzstd1")
SUITE = "sid"
MIRROR = "https://deb.debian.org/debian"  # used if apt's own sources name no Debian archive
LIBRARIES = "usr/lib/x86_64-linux-gnu"
WRAPPER = """#!/bin/sh
# Runs {program} with the C library that it was built for.
root="$(dirname "$(readlink -f "$0")")/root"
exec "$root/{libraries}/ld-linux-x86-64.so.2" --library-path "$root/{libraries}" "$root/usr/bin/{program}" "$@"
"""


def debian_mirror(etc: Path = Path("/etc/apt")) -> str:
    """Returns the archive that this machine's own apt uses for Debian proper, or the public one."""
    lists = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    for path in lists:
        if not path.is_file():
            continue
        text = re.sub(r"(?m)^\s*#.*$", "", path.read_text(errors="replace"))
        for match in re.finditer(r"(?m)^(?:deb\s+(?:\[[^\]]*\]\s+)?|URIs:\s*)((?:https?|file):\S+)", text):
            url = match[1].rstrip("/")
            if url.endswith("/debian"):
                return url
    return MIRROR


def run(command: list[str], folder: Path) -> str:
    """Runs a command and returns its output; raises SystemExit with the output if it fails."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise failure(command, done.stdout)
    return done.stdout


def failure(command: list[str], output: str) -> SystemExit:
    """Makes the error that ends the program, with a command's output."""
    return SystemExit(f"get_ocloc: {shlex.join(command)} failed:\n{output[-4000:]}")


def private_apt(folder: Path, sources: str = "") -> Path:
    """Writes an apt configuration for these sources only, or for the system's; apt then writes to this folder alone."""
    for name in ("apt.conf.d", "preferences.d", "lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True)
    lines = [
        f'Dir::State "{folder}";',
        'Dir::State::status "/dev/null";',
        f'Dir::Cache "{folder}";',
        'Acquire::Languages "none";',
        'Acquire::Check-Valid-Until "false";',
        'Acquire::Retries "2";',
        'Acquire::http::Timeout "20";',
        'Acquire::https::Timeout "20";',
    ]
    if sources:
        (folder / "sources.list").write_text(sources)
        lines += [f'Dir::Etc "{folder}";', f'Dir::Etc::sourcelist "{folder}/sources.list";']
        lines += ['Dir::Etc::sourceparts "-";', 'APT::Architecture "amd64";', 'APT::Update::Error-Mode "any";']
    if os.geteuid() == 0:
        lines += ['APT::Sandbox::User "root";']
    config = folder / "apt.conf"
    config.write_text("\n".join(lines) + "\n")
    return config


def debian_keys(work: Path) -> Path:
    """Returns Debian's installed keys, or those of the system's own archive, whose keys then vouch for them."""
    if installed := keyring_below(Path("/")):
        return installed
    config = private_apt(work / "system")
    run(["apt-get", "-c", str(config), "-q", "update"], work)
    run(["apt-get", "-c", str(config), "-q", "download", "debian-archive-keyring"], work)
    for package in work.glob("debian-archive-keyring_*.deb"):
        run(["dpkg-deb", "-x", str(package), str(work / "keys")], work)
    if fetched := keyring_below(work / "keys"):
        return fetched
    raise SystemExit("get_ocloc: Debian's keys were not found; install the package debian-archive-keyring")


def keyring_below(root: Path) -> Path | None:
    """Finds Debian's keys in a file system, under the name that this release gives them."""
    folder = root / "usr/share/keyrings"
    return next(
        (p for p in (folder / f"debian-archive-keyring.{suffix}" for suffix in ("gpg", "pgp")) if p.exists()), None
    )


def with_dependencies(config: Path, work: Path, packages: tuple[str, ...] = PACKAGES) -> list[str]:
    """Returns the packages and what they depend on."""
    options = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"]
    command = ["apt-cache", "-c", str(config), "depends", "--recurse", *(f"--no-{name}" for name in options), *packages]
    found = re.findall(r"(?m)^([a-z0-9][a-z0-9+.-]+)(?::\w+)?$", run(command, work))
    return sorted(set(found) | set(packages))


def write_wrapper(folder: Path, name: str) -> None:
    """Writes a script `name` that runs the unpacked program of that name, whatever version its file name carries."""
    programs = sorted((folder / "root/usr/bin").glob(name + "*"), key=lambda p: len(p.name))
    if not programs:
        raise SystemExit(f"get_ocloc: the packages hold no program {name}")
    script = folder / name
    script.write_text(WRAPPER.format(program=programs[0].name, libraries=LIBRARIES))
    script.chmod(0o755)


def versions(folder: Path) -> str:
    """Runs both programs; returns the versions that they print."""
    with tempfile.TemporaryDirectory() as scratch:
        said = run([str(folder / "ocloc"), "query", "OCL_DRIVER_VERSION"], Path(scratch)).strip()
        file = Path(scratch) / "OCL_DRIVER_VERSION"
        ocloc = file.read_text().strip(" \n\0") if file.exists() else said
        iga = run([str(folder / "iga64"), "-h"], Path(scratch)).strip().splitlines()
    return f"ocloc {ocloc}, {iga[0] if iga else 'iga64'}"


def download(config: Path, names: list[str], folder: Path, say: Callable[[str], None]) -> None:
    """Downloads the packages into the folder; prints progress after every tenth."""
    command = ["apt-get", "-c", str(config), "-q", "download"]
    sizes = [int(line.split()[-2]) for line in run([*command, "--print-uris", *names], folder).splitlines()]
    total, tenths = sum(sizes), 0
    say(f"downloading {len(sizes)} packages, {total / 1e6:.0f} MB")
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([*command, *names], cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            time.sleep(0.2)
            done = sum(path.stat().st_size for path in folder.iterdir())
            if 10 * done // total > tenths:
                tenths = 10 * done // total
                say(f"downloaded {done / 1e6:.0f} of {total / 1e6:.0f} MB")
        output.seek(0)
        if process.returncode:
            raise failure([*command, *names], output.read())


def fetch(folder: Path, mirror: str, suite: str, say: Callable[[str], None] = print) -> str:
    """Fills the folder anew and returns what is in it; the old one stays until the new one works."""
    for tool in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise SystemExit(
                f"get_ocloc: {tool} was not found; without Debian's tools, install ocloc 26 or newer yourself and name "
                "it in XEFLASH_OCLOC"
            )
    try:
        open_folder(folder, make=True).close()
    except OSError as error:
        raise SystemExit(f"get_ocloc: {folder} cannot be used: {error}") from None
    with tempfile.TemporaryDirectory(prefix=".ocloc-", dir=folder.parent) as scratch:
        work = Path(scratch)
        say(f"fetching the list of packages of {suite} from {mirror}")
        config = private_apt(work / "apt", f"deb [signed-by={debian_keys(work)}] {mirror} {suite} main\n")
        run(["apt-get", "-c", str(config), "-q", "update"], work)
        packages = work / "packages"
        packages.mkdir()
        download(config, with_dependencies(config, work), packages, say)
        fresh = work / "fresh"
        fresh.mkdir(mode=0o700)
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
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="get_ocloc", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--mirror", default=debian_mirror(), help="Debian archive (default: %(default)s)")
    parser.add_argument("--suite", default=SUITE, help="Debian suite to take the packages from (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=cache_folder() / "ocloc", help="default: %(default)s")
    parser.add_argument("--force", action="store_true", help="fetch again even if what is there works")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    if (folder / "ocloc").exists() and not options.force:
        print(f"{folder}: {versions(folder)} (there already; --force fetches anew)")
        return
    print(f"{folder}: {fetch(folder, options.mirror, options.suite)}")


if __name__ == "__main__":
    main()
