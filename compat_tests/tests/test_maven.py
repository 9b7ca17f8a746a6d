"""The jar cache, with a script in place of Maven."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.jars import maven
from compat_tests.jars.maven import Unavailable, cache_dir, fetch_jars

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only one on PATH, and an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ROCKETMQ_COMPAT_CACHE", str(tmp_path / "cache"))
    return folder


def put(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


# A fake Maven that records each call and writes one jar into the output folder.
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
    first = fetch_jars("client-4.9")
    assert (first / "one.jar").exists()
    assert fetch_jars("client-4.9") == first
    assert calls(tools) == 1


def test_profiles_do_not_share_a_folder(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", FETCH)
    assert fetch_jars("client-4.9") != fetch_jars("server-5.4")


def test_processes_that_race_fetch_once(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", FETCH)
    # Not forked from this process, whose threads and signal handlers would come along.
    script = "from compat_tests.jars.maven import fetch_jars; print(fetch_jars('client-5.5'))"
    programs = [
        subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    folders = [program.communicate(timeout=60)[0] for program in programs]
    assert len(set(folders)) == 1
    assert folders[0].strip()
    assert calls(tools) == 1


def test_a_failed_fetch_is_told_and_tried_again(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", "echo no such artifact; exit 1")
    with pytest.raises(Unavailable, match="no such artifact"):
        fetch_jars("server-5.4")
    put(tools, "mvn", FETCH)
    assert (fetch_jars("server-5.4") / "one.jar").exists()


def test_an_interrupted_fetch_leaves_no_stray_jars(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", FETCH)
    target = fetch_jars("server-5.4")
    (target / maven.COMPLETE_MARKER).unlink()
    (target / "half.jar").touch()
    assert not (fetch_jars("server-5.4") / "half.jar").exists()


@pytest.mark.parametrize(("present", "missing"), [([], "java"), (["java"], "mvn")])
def test_missing_tools_are_named(tools: Path, present: list[str], missing: str) -> None:
    for name in present:
        put(tools, name, "")
    with pytest.raises(Unavailable, match=f"^{missing} is not on PATH"):
        fetch_jars("server-5.4")


def test_cached_jars_need_no_maven(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", FETCH)
    fetch_jars("server-5.4")
    os.remove(tools / "mvn")
    fetch_jars("server-5.4")


def test_unknown_profile() -> None:
    with pytest.raises(ValueError, match=r"known are server-5\.4"):
        fetch_jars("server-1.0")


def test_servers_of_other_versions_have_folders_of_their_own(tools: Path) -> None:
    put(tools, "java", "")
    put(tools, "mvn", FETCH.replace("echo call", 'echo "$@"'))
    assert fetch_jars("server-5.3.3") != fetch_jars("server-5.5.0")
    assert "-Pserver -Dserver.version=5.3.3 " in (tools / "mvn.calls").read_text()


def test_every_profile_is_in_the_pom() -> None:
    text = maven.POM.read_text()
    assert all(f"<id>{profile}</id>" in text for profile in maven.PROFILES)


def test_an_installed_package_uses_the_users_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ROCKETMQ_COMPAT_CACHE", raising=False)
    monkeypatch.setattr(maven, "_CHECKOUT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/rocketmq-gateway")


def test_a_checkout_has_a_cache_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ROCKETMQ_COMPAT_CACHE", raising=False)
    monkeypatch.setattr(maven, "_CHECKOUT", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert cache_dir() == tmp_path / ".build" / "cache"


def test_build_tools_have_the_real_home_and_write_into_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROCKETMQ_COMPAT_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", "/empty")
    monkeypatch.setenv("ROCKETMQ_TOOLS_HOME", "/of/the/user")
    environment = maven.tool_environment()
    assert environment["HOME"] == "/of/the/user"
    assert all(
        environment[name].startswith(str(tmp_path)) for name in ("GOMODCACHE", "GOCACHE", "npm_config_cache")
    )


def test_a_test_run_has_a_home_folder_of_its_own() -> None:
    """`make serve` keeps its store in the user's home folder, and tests must not see it."""
    assert os.environ["HOME"] != os.environ["ROCKETMQ_TOOLS_HOME"]
