"""Where get_ocloc fetches from, and whose keys it trusts; nothing is fetched here."""

from pathlib import Path

import pytest
from xeflash.sim import get_ocloc

DEBIAN_LINES = """
# deb http://old.example/debian bookworm main
deb [signed-by=/k.gpg] http://mirror.example/debian-security bookworm-security main
deb [arch=amd64] http://mirror.example/debian/ bookworm main
"""
DEBIAN_FIELDS = "Types: deb\nURIs: https://other.example/debian\nSuites: trixie\nComponents: main\n"
UBUNTU = "Types: deb\nURIs: http://archive.ubuntu.com/ubuntu/\nSuites: noble\nComponents: main universe\n"


@pytest.mark.parametrize(
    "lines, fields, mirror",
    [
        (DEBIAN_LINES, "", "http://mirror.example/debian"),
        ("", DEBIAN_FIELDS, "https://other.example/debian"),
        ("", UBUNTU, get_ocloc.MIRROR),
    ],
)
def test_mirror_is_the_systems_or_the_public_one(tmp_path, lines, fields, mirror):
    (tmp_path / "sources.list").write_text(lines)
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "system.sources").write_text(fields)
    assert get_ocloc.debian_mirror(tmp_path) == mirror


@pytest.fixture
def system_without_keys(monkeypatch):
    below = get_ocloc.keyring_below
    monkeypatch.setattr(get_ocloc, "keyring_below", lambda root: None if root == Path("/") else below(root))
    monkeypatch.setattr(get_ocloc.os, "geteuid", lambda: 1000)


def test_missing_keys_come_from_the_systems_own_archive(tmp_path, monkeypatch, system_without_keys):
    def run(command: list[str], folder: Path) -> str:
        if command[-1] == "debian-archive-keyring":
            config = Path(command[2]).read_text()
            assert "Dir::Etc" not in config, "the sources, and the keys that vouch, are the system's"
            (folder / "debian-archive-keyring_1_all.deb").touch()
        if command[0] == "dpkg-deb":
            keys = Path(command[-1], "usr/share/keyrings")
            keys.mkdir(parents=True)
            (keys / "debian-archive-keyring.pgp").touch()
        return ""

    monkeypatch.setattr(get_ocloc, "run", run)
    assert get_ocloc.debian_keys(tmp_path) == tmp_path / "keys/usr/share/keyrings/debian-archive-keyring.pgp"


def test_without_keys_nothing_is_fetched(tmp_path, monkeypatch, system_without_keys):
    monkeypatch.setattr(get_ocloc, "run", lambda command, folder: "")
    with pytest.raises(SystemExit, match="install the package debian-archive-keyring"):
        get_ocloc.debian_keys(tmp_path)
