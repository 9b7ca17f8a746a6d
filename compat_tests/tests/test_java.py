"""Java command lines and the compile cache, with scripts in place of the JDK."""

import stat
from pathlib import Path

import pytest

from compat_tests.jars import java
from compat_tests.jars.java import compiled, java_command


@pytest.fixture
def jdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("java", "javac"):
        (folder / name).write_text('#!/bin/sh\necho "$@" >> "$0.calls"\n')
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ROCKETMQ_COMPAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "ensure", lambda profile: Path("/jars") / profile)
    return folder


def test_command_line(jdk: Path) -> None:
    home = Path("/h")
    command = java_command("client-4.9", "Main", home, heap="-Xms1m -Xmx2m", classes=[Path("/mine")])
    assert command[0] == str(jdk / "java")
    assert command[1:3] == ["-Xms1m", "-Xmx2m"]
    assert command[-1] == "Main"
    folders = command[command.index("-cp") + 1].split(":")
    assert folders == [str(java.LOGBACK), "/mine", "/jars/client-4.9/*"]
    assert "-Duser.home=/h" in command
    assert "-Dcompat.log=/h/java.log" in command


def test_properties_win_over_our_own(jdk: Path) -> None:
    command = java_command("client-4.9", "Main", Path("/h"), properties={"user.home": "/other", "a": "b"})
    assert [word for word in command if word.startswith("-Duser.home")] == ["-Duser.home=/other"]
    assert "-Da=b" in command


def test_log_settings_exist_where_the_class_path_points() -> None:
    assert "${compat.log" in (java.LOGBACK / "rmq.logback.xml").read_text()


def test_compiles_again_only_when_a_source_changes(jdk: Path, tmp_path: Path) -> None:
    source = tmp_path / "A.java"
    source.write_text("class A {}")
    first = compiled([source], "client-4.9")
    assert compiled([source], "client-4.9") == first
    source.write_text("class A { int a; }")
    assert compiled([source], "client-4.9") != first
    assert len((jdk / "javac.calls").read_text().splitlines()) == 2


def test_a_wrong_source_gives_the_compiler_s_words_and_is_not_cached(jdk: Path, tmp_path: Path) -> None:
    (jdk / "javac").write_text("#!/bin/sh\necho A.java:1: error >&2; exit 1\n")
    source = tmp_path / "A.java"
    source.write_text("class")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"A\.java:1: error"):
            compiled([source], "client-4.9")
