"""The jar cache, with a script in place of Maven."""

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from compat_tests.jars import maven
from compat_tests.jars.maven import Unavailable, cache_dir, ensure


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing but what a test puts there, and an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ROCKETMQ_COMPAT_CACHE", str(tmp_path / "cache"))
    return folder


def put(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


# notes each call, and writes one jar into the folder it is told
FETCH = """
echo call >> "$0.calls"
for word in "$@"; do case $word in -DoutputDirectory=*) out=${word#*=} ;; esac; done
/bin/mkdir -p "$out" && echo jar > "$out/one.jar"
"""


def calls(tools: Path) -> int:
    log = tools / "mvn.calls"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_fetches_once_and_then_answers_from_the_cache(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", FETCH)
    first = ensure("client-4.9")
    assert (first / "one.jar").exists()
    assert ensure("client-4.9") == first
    assert calls(tools) == 1


def test_profiles_do_not_share_a_folder(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", FETCH)
    assert ensure("client-4.9") != ensure("server-5.4")


def test_processes_that_race_fetch_once(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", FETCH)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(ensure, ["client-5.5"] * 4, chunksize=1)
    assert len(set(found)) == 1
    assert calls(tools) == 1


def test_a_failed_fetch_is_told_and_tried_again(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", "echo no such artifact; exit 1")
    with pytest.raises(Unavailable, match="no such artifact"):
        ensure("server-5.4")
    put(tools, "mvn", FETCH)
    assert (ensure("server-5.4") / "one.jar").exists()


def test_an_interrupted_fetch_leaves_no_stray_jars(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", FETCH)
    target = ensure("server-5.4")
    (target / maven.COMPLETE).unlink()
    (target / "half.jar").touch()
    assert not (ensure("server-5.4") / "half.jar").exists()


@pytest.mark.parametrize(("present", "missing"), [([], "java"), (["java"], "mvn")])
def test_missing_tools_are_named(tools: Path, present: list[str], missing: str) -> None:
    for name in present:
        put(tools, name, "")
    with pytest.raises(Unavailable, match=f"^{missing} is not on PATH"):
        ensure("server-5.4")


def test_cached_jars_need_no_maven(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", FETCH)
    ensure("server-5.4")
    os.remove(tools / "mvn")
    ensure("server-5.4")


def test_unknown_profile() -> None:
    with pytest.raises(ValueError, match=r"known are server-5\.4"):
        ensure("server-1.0")


def test_every_profile_is_in_the_pom() -> None:
    text = maven.POM.read_text()
    assert all(f"<id>{profile}</id>" in text for profile in maven.PROFILES)


def test_cache_follows_the_user_s_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_COMPAT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/rocketmq-gateway")
