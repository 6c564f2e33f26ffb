"""Write the outcomes of all transcripts anew: `python -m tests.raft.regenerate`, then read the difference."""

from __future__ import annotations

from tests.raft.transcript import FOLDER, Transcript


def main() -> None:
    for path in sorted(FOLDER.glob("*.txt")):
        before = path.read_text(encoding="utf-8")
        after = Transcript().replay(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"changed: {path.name}")


if __name__ == "__main__":
    main()
