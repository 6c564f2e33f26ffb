"""Which files a simulated disk has open: a test that wants none left asks here."""

from __future__ import annotations

from ister.testing import SimDisk


class OpenedFiles:
    """Every file that is opened on a disk from now on."""

    def __init__(self, disk: SimDisk) -> None:
        self._files: list[object] = []
        really_open = disk.open

        def counting(path: str, *, create: bool = False) -> object:
            file = really_open(path, create=create)
            self._files.append(file)
            return file

        disk.open = counting  # type: ignore[assignment, method-assign]

    def __len__(self) -> int:
        return len(self._files)

    @property
    def still_open(self) -> list[object]:
        return [file for file in self._files if file._open]  # type: ignore[attr-defined]
