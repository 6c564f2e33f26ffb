"""Set-up: makes `.venv` and installs into it, in two stages.

    setup.py core               Ister itself, Arrow and compression: enough for a broker and its tools
    setup.py full               the rest: the tools of development, and Spark with a Java runtime
    setup.py full --background  start the full stage and return at once
    setup.py full --wait        wait for that; if it failed, say why instead of trying again
    setup.py status             one line a stage; exit code 0 once everything is ready

What can fail: no network, a full disk, a Python without `venv`, a kill at any moment, two of these at
once. What then holds:
- A stage's stamp is written after all of it is installed, by one rename. No stamp, no stage.
- One pip at a time: whoever installs holds the lock, and a background install inherits it from the
  process that started it, so there is no moment at which it looks free.
- The full stage never touches Ister's own installation: what already runs from `.venv` goes on.
- A stage whose stamp is current needs no network and no pip.

This file starts on any Python 3, to say clearly that it is too old; hence its plain syntax.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

OLDEST = (3, 11)
# Those that the tests have run on come first.
NEWER_NAMES = ("python3.13", "python3.12", "python3.11", "python3.14")

THIS_FILE = str(Path(__file__).resolve())
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
MADE_FOR = VENV / ".made-for"
CONSTRAINTS = ROOT / "constraints.txt"
# Beside `.venv`, not in it: the lock must outlive a `.venv` that is made anew.
STATE = ROOT / ".setup"
WAIT_SECONDS = 0.2

EXTRAS = {
    "core": ("arrow", "compression", "fast"),
    "full": ("dev", "spark", "connect", "pipelines", "lake", "s3"),
}
CONTENTS = {
    "core": "Ister, Arrow, compression: about 70 MB to download, 250 MB on disk",
    "full": "Spark, a Java runtime, table formats, tools: about 620 MB to download, 1 GB on disk",
}

HINTS = (
    (("No space left on device",), "The disk is full: free about 2 GB, then run `make setup` again."),
    (
        ("name resolution", "NewConnectionError", "ConnectTimeout", "ReadTimeout", "ProxyError", "SSLError"),
        "The package index was out of reach: check the network, or pip's proxy and index settings "
        "(`pip config list`), then run `make setup` again. What was downloaded is kept.",
    ),
    (
        ("No matching distribution", "Could not find a version", "requires a different Python"),
        "A package has no version for this Python or machine: try another Python, as in "
        "`rm -rf .venv && make setup PYTHON=python3.12`, or check pip's index settings (`pip config list`).",
    ),
    (
        ("ResolutionImpossible",),
        "The versions in constraints.txt were not to be had: either the package index was out of reach, or "
        "it does not carry them. Check the network and pip's settings (`pip config list`), then run "
        "`make setup` again.",
    ),
)


class SetupFailed(Exception):
    """Ends the set-up; the message says what happened and what to do."""


# The Python to build on.


def version_text(version: Any) -> str:
    return ".".join(str(part) for part in version[:3])


def newer_python() -> Optional[str]:
    """A Python on PATH that is new enough and really runs (a version manager's shim may not)."""
    probe = "import sys; sys.exit(sys.version_info < {!r})".format(OLDEST)
    for name in NEWER_NAMES:
        path = shutil.which(name)
        if path and subprocess.call([path, "-c", probe], stderr=subprocess.DEVNULL) == 0:
            return path
    return None


def require_new_enough_python() -> None:
    """Go on under a newer Python if this one is too old; if there is none, say which one was found."""
    if sys.version_info >= OLDEST:
        return
    newer = newer_python()
    if newer:
        os.execv(newer, [newer, THIS_FILE] + sys.argv[1:])
    raise SetupFailed(
        "Ister needs Python {} or newer; found Python {} at {}.\n"
        "Install one (Debian, Ubuntu: `{}`), or name it: `make setup PYTHON=/path/to/python3.12`.".format(
            version_text(OLDEST),
            version_text(sys.version_info),
            sys.executable,
            apt("python3.11 python3.11-venv"),
        )
    )


def apt(packages: str) -> str:
    if os.geteuid() == 0:
        return "apt update && apt install -y " + packages
    return "sudo apt update && sudo apt install -y " + packages


# The environment itself.


def ensure_environment() -> None:
    """Make `.venv`, unless it is there and works. One that was moved here with its folder is made anew."""
    if VENV_PYTHON.exists():
        if not MADE_FOR.exists():
            require_usable_environment()
            return
        if MADE_FOR.read_text() == str(ROOT):
            return
        print("set-up: .venv was made for {}; making it anew".format(MADE_FOR.read_text()), flush=True)
    if VENV.exists():
        shutil.rmtree(str(VENV))
    print("set-up: making .venv with Python {}".format(version_text(sys.version_info)), flush=True)
    attempts = [[sys.executable, "-m", "venv"], [sys.executable, "-m", "virtualenv", "-q"]]
    command = shutil.which("virtualenv")
    if command:
        attempts.append([command, "-q", "-p", sys.executable])
    for attempt in attempts:
        if environment_made_by(attempt):
            MADE_FOR.write_text(str(ROOT))
            return
    raise SetupFailed(
        "This Python ({}, {}) can't make virtual environments: it has no working `venv`, and there is no "
        "virtualenv.\nRun this, then `make setup` again:\n\n    {}\n".format(
            version_text(sys.version_info), sys.executable, command_for_venv()
        )
    )


def require_usable_environment() -> None:
    """An environment without our mark was made by hand: it is used as it is, never removed."""
    probe = "import sys, pip; sys.exit(sys.version_info < {!r})".format(OLDEST)
    if subprocess.call([str(VENV_PYTHON), "-c", probe], stderr=subprocess.DEVNULL) != 0:
        raise SetupFailed(
            "The .venv that is already here was made by something else, and has no pip, or a Python older "
            "than {}.\nRemove it (`rm -rf .venv`), then run `make setup` again.".format(version_text(OLDEST))
        )


def environment_made_by(command: List[str]) -> bool:
    made = subprocess.call(command + [str(VENV)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    works = (
        made and VENV_PYTHON.exists() and subprocess.call(pip("--version"), stdout=subprocess.DEVNULL) == 0
    )
    if not works:
        shutil.rmtree(str(VENV), ignore_errors=True)
    return works


def command_for_venv() -> str:
    if shutil.which("apt"):
        return apt("python{}.{}-venv".format(*sys.version_info[:2]))
    if shutil.which("dnf"):
        return "sudo dnf install -y python3-virtualenv"
    return "{} -m pip install --user virtualenv".format(sys.executable)


# Stages, stamps and the lock.


def stamp_path(stage: str) -> Path:
    return VENV / ".installed-{}".format(stage)


def log_path(stage: str) -> Path:
    return STATE / "{}.log".format(stage)


def failure_path(stage: str) -> Path:
    return STATE / "{}.failed".format(stage)


def wanted_key() -> str:
    """What an up-to-date stamp says. The folder is in it: an editable install points into it."""
    digest = hashlib.sha256(str(ROOT).encode())
    for path in (ROOT / "pyproject.toml", CONSTRAINTS):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def holds(path: Path, key: str) -> bool:
    return path.exists() and path.read_text() == key


def ready(stage: str) -> bool:
    return VENV_PYTHON.exists() and holds(stamp_path(stage), wanted_key())


def put(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.replace(path)


def open_lock() -> int:
    STATE.mkdir(exist_ok=True)
    put(STATE / ".gitignore", "*\n")
    return os.open(str(STATE / "lock"), os.O_RDWR | os.O_CREAT, 0o644)


def try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(lock: int, stage: str) -> None:
    """Wait for whoever installs, and say meanwhile what is being downloaded, as its log does."""
    if try_lock(lock):
        return
    print("set-up: waiting for the install that is already running", flush=True)
    told = 0
    while not try_lock(lock):
        said = log_path(stage).read_text().splitlines() if log_path(stage).exists() else []
        for line in said[told:]:
            show_progress(line)
        told = len(said)
        time.sleep(WAIT_SECONDS)


# Installing.


def pip(*arguments: str) -> List[str]:
    return [str(VENV_PYTHON), "-m", "pip"] + list(arguments)


def requirements(stage: str) -> List[str]:
    """The stage's requirements by name, without Ister: see the promises above."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"]) if stage == "core" else []
    for extra in EXTRAS[stage]:
        wanted += project["optional-dependencies"][extra]
    return [requirement for requirement in wanted if not requirement.startswith("ister[")]


def install(stage: str, lock: int) -> None:
    """Install one stage. The caller holds the lock."""
    key = wanted_key()
    for leftover in (stamp_path(stage), failure_path(stage)):
        if leftover.exists():
            leftover.unlink()
    print("set-up: installing {} ({})".format(stage, CONTENTS[stage]), flush=True)
    try:
        with log_path(stage).open("w") as log:
            run_pip(pip("install", "--progress-bar", "off", *requirements(stage)), log, lock)
            if stage == "core":
                run_pip(pip("install", "--no-deps", "--editable", str(ROOT)), log, lock)
    except SetupFailed:
        put(failure_path(stage), key)
        raise SetupFailed(describe_failure(stage))
    put(stamp_path(stage), key)
    print("set-up: {} is ready".format(stage), flush=True)


def run_pip(command: List[str], log: Any, lock: int) -> None:
    """Run pip; everything it says goes to the log, and what it downloads is shown.

    It inherits the lock: should this process be killed, a pip that lives on still keeps others out.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        env=pip_environment(),
        pass_fds=(lock,),
    )
    assert process.stdout is not None
    for line in process.stdout:
        log.write(line)
        log.flush()
        show_progress(line)
    if process.wait() != 0:
        raise SetupFailed("pip ended with exit code {}".format(process.returncode))


def show_progress(line: str) -> None:
    progress = describe_progress(line.split())
    if progress:
        print("set-up:   {}".format(progress), flush=True)


def describe_progress(words: List[str]) -> str:
    """What a line of pip's means to a person; nothing for most of them."""
    if words[:1] == ["Downloading"] and not words[1].endswith(".metadata"):
        name, version = words[1].rsplit("/", 1)[-1].replace(".tar.gz", "").split("-")[:2]
        return "downloading {} {} {}".format(name, version, " ".join(words[2:])).rstrip()
    if words[:2] == ["Building", "wheel"] and words[-1] == "started":
        return "building {}".format(words[3])
    return ""


def pip_environment() -> Dict[str, str]:
    """The pins apply to build tools as well; which variable does that depends on pip's version."""
    pins = CONSTRAINTS.as_uri()  # a plain path would be split at its blanks
    fixed = {"PIP_CONSTRAINT": pins, "PIP_BUILD_CONSTRAINT": pins, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return dict(os.environ, **fixed)


def describe_failure(stage: str) -> str:
    said = log_path(stage).read_text().splitlines() if log_path(stage).exists() else []
    text = "\n".join(said)
    hint = "The whole log is {}; `make setup` tries again.".format(log_path(stage).relative_to(ROOT))
    for signs, advice in HINTS:
        if any(sign in text for sign in signs):
            hint = advice
            break
    quoted = "\n".join("    " + line for line in said[-15:])
    return "installing {} failed. pip said last:\n{}\n{}".format(stage, quoted, hint)


# What the commands do.


def bring_up(stage: str, lock: int) -> None:
    """Everything up to `stage`; the lock is held."""
    ensure_environment()
    for each in ("core", "full"):
        if not ready(each):
            install(each, lock)
        if each == stage:
            return


def set_up(stage: str) -> None:
    if ready("core") and ready(stage):
        return
    require_new_enough_python()
    lock = open_lock()
    wait_for_lock(lock, stage)
    bring_up(stage, lock)


def set_up_in_background(stage: str) -> None:
    if ready("core") and ready(stage):
        return
    require_new_enough_python()
    lock = open_lock()
    if not try_lock(lock):
        print("set-up: an install is already running; it goes on in the background", flush=True)
        return
    print("set-up: installing {} in the background ({})".format(stage, CONTENTS[stage]), flush=True)
    print("set-up: it goes on if this is interrupted; its log is .setup/{}.log".format(stage), flush=True)
    command = [sys.executable, THIS_FILE, stage, "--inherited-lock", str(lock)]
    with (STATE / "background.log").open("w") as output:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            start_new_session=True,
        )


def wait_for_background(stage: str) -> None:
    if ready("core") and ready(stage):
        return
    require_new_enough_python()
    lock = open_lock()
    wait_for_lock(lock, stage)
    if ready("core") and ready(stage):
        return
    if holds(failure_path(stage), wanted_key()):
        raise SetupFailed(describe_failure(stage))
    bring_up(stage, lock)


def state_of(stage: str) -> str:
    if ready(stage):
        return "ready"
    lock = open_lock()
    running = not try_lock(lock)
    os.close(lock)
    if running:
        return "installing"
    return "failed" if holds(failure_path(stage), wanted_key()) else "missing"


def show_status() -> int:
    states = {stage: state_of(stage) for stage in EXTRAS}
    for stage, state in states.items():
        print("{}: {}".format(stage, state))
    return 0 if set(states.values()) == {"ready"} else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Make .venv and install into it.")
    parser.add_argument("what", choices=["core", "full", "status"])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--background", action="store_true", help="start the install and return at once")
    how.add_argument("--wait", action="store_true", help="wait for the install in the background")
    how.add_argument("--inherited-lock", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        if arguments.what == "status":
            return show_status()
        if arguments.inherited_lock is not None:
            bring_up(arguments.what, arguments.inherited_lock)
        elif arguments.background:
            set_up_in_background(arguments.what)
        elif arguments.wait:
            wait_for_background(arguments.what)
        else:
            set_up(arguments.what)
    except SetupFailed as failure:
        print("set-up: {}".format(failure), file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("set-up: interrupted; `make setup` goes on from here", file=sys.stderr, flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
