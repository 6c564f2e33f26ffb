"""What a simulated disk stores: files and directories, each as two images.

The volatile image is what a running machine sees (the page cache); the durable one is what is on the
platter. Between the two stands a list of changes that were made and not synced. A sync plays them onto
the durable image; a crash plays them by dice, and the durable image is all that is left.

Rules of the dice:
- A write is kept, dropped or torn: cut at a byte, cut at a sector, or with sectors missing inside. A
  truncate or an allocation is kept or dropped. Changes that are kept are played in their order.
- A change of names is kept or dropped whole, so a rename is old or new, never half. If one is dropped,
  so are the later ones on the same names: they would make no sense without it.
- Often enough a crash loses all, or nothing, since dice over many changes seldom say so.
"""

from __future__ import annotations

from enum import Enum, auto
from random import Random

SECTOR_BYTES = 512


class Loss(Enum):
    """How a crash treats what was not synced."""

    ALL = auto()
    NONE = auto()
    SOME = auto()


def roll_loss(random: Random) -> Loss:
    return random.choices((Loss.ALL, Loss.NONE, Loss.SOME), (25, 15, 60))[0]


class _Kind(Enum):
    WRITE = auto()
    TRUNCATE = auto()
    ALLOCATE = auto()


# Kind, position (or size), and the bytes of a write.
_Change = tuple[_Kind, int, bytes]


class FileImage:
    """The bytes of one file, wherever it is named."""

    __slots__ = ("_pending", "durable", "linked", "volatile")

    def __init__(self) -> None:
        self.volatile = bytearray()
        self.durable = bytearray()
        self.linked = True  # does some directory name it? What does not count is nobody's space
        self._pending: list[_Change] = []

    def write(self, data: bytes, position: int) -> None:
        self._change((_Kind.WRITE, position, data))

    def truncate(self, size: int) -> None:
        self._change((_Kind.TRUNCATE, size, b""))

    def allocate(self, size: int) -> None:
        self._change((_Kind.ALLOCATE, size, b""))

    def _change(self, change: _Change) -> None:
        _play(self.volatile, change)
        self._pending.append(change)

    def sync(self) -> None:
        for change in self._pending:
            _play(self.durable, change)
        self._pending.clear()

    def fail_sync(self, random: Random) -> None:
        """As Linux does: the pages are marked clean all the same, and no later sync writes them (P1).

        Some of them may have reached the platter before the failure; the volatile image has them all.
        """
        if random.random() < 0.25:
            self._play_some(random)
        self._pending.clear()

    def crash(self, random: Random, loss: Loss) -> None:
        if loss is Loss.NONE:
            self.sync()
        elif loss is Loss.SOME:
            self._play_some(random)
        self._pending.clear()
        self.volatile = bytearray(self.durable)

    def _play_some(self, random: Random) -> None:
        for change in self._pending:
            dice = random.random()
            if dice < 0.4:
                _play(self.durable, change)
            elif dice < 0.65 and change[0] is _Kind.WRITE:
                for piece in _torn(change, random):
                    _play(self.durable, piece)

    def rot(self, position: int, bit: int) -> None:
        """Flip one bit of what is stored, and of what is on its way to be."""
        for image in (self.volatile, self.durable):
            if position < len(image):
                image[position] ^= 1 << bit
        self._pending = [_rotten(change, position, bit) for change in self._pending]

    def cut(self, size: int) -> None:
        """Both images end at `size` from now."""
        del self.volatile[size:]
        self.durable = bytearray(self.volatile)
        self._pending.clear()


def _play(image: bytearray, change: _Change) -> None:
    kind, at, data = change
    size = len(image)
    if kind is _Kind.WRITE:
        if at > size:
            image.extend(bytes(at - size))
        image[at : at + len(data)] = data
    elif at > size:
        image.extend(bytes(at - size))
    elif kind is _Kind.TRUNCATE:
        del image[at:]


def _torn(change: _Change, random: Random) -> list[_Change]:
    _, position, data = change
    way = random.randrange(3)
    if way == 0:
        return [(_Kind.WRITE, position, data[: random.randrange(len(data) + 1)])]
    cuts = [*range(SECTOR_BYTES - position % SECTOR_BYTES, len(data), SECTOR_BYTES), len(data)]
    if way == 1:
        return [(_Kind.WRITE, position, data[: random.choice([0, *cuts])])]
    pieces: list[_Change] = []
    if random.random() < 0.5:
        # The new size made it, the bytes did not all: zeros where they are missing.
        pieces.append((_Kind.ALLOCATE, position + len(data), b""))
    start = 0
    for cut in cuts:
        if random.random() < 0.5:
            pieces.append((_Kind.WRITE, position + start, data[start:cut]))
        start = cut
    return pieces


def _rotten(change: _Change, position: int, bit: int) -> _Change:
    kind, at, data = change
    if kind is not _Kind.WRITE or not at <= position < at + len(data):
        return change
    flipped = bytearray(data)
    flipped[position - at] ^= 1 << bit
    return kind, at, bytes(flipped)


class Directory:
    """Names, as the machine sees them (`entries`) and as they are on the platter (`durable`)."""

    __slots__ = ("durable", "entries", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = Directory | FileImage

# In a directory, this name becomes this node, or nothing. A rename is two of them, target last.
Naming = tuple[Directory, str, Node | None]
_Key = tuple[int, str]


class Tree:
    """All names of a disk, and the changes to them that no directory sync has made durable."""

    def __init__(self) -> None:
        self._made = 0
        self.root = Directory(0)
        self._pending: list[tuple[Naming, ...]] = []

    def find(self, parts: tuple[str, ...], *, durable: bool = False) -> Node | None:
        node: Node | None = self.root
        for name in parts:
            if not isinstance(node, Directory):
                return None
            node = (node.durable if durable else node.entries).get(name)
        return node

    def change(self, *namings: Naming) -> None:
        """All of these at once, now; for good when the last one's directory is synced."""
        for directory, name, node in namings:
            _name(directory.entries, name, node)
        self._pending.append(namings)

    def add_directory(self, parent: Directory, name: str) -> Directory:
        """A new directory, durable at once."""
        self._made += 1
        made = Directory(self._made)
        self.change((parent, name, made))
        self._commit(None, {(parent.number, name)})
        return made

    def sync(self, directory: Directory) -> None:
        self._commit(directory, set())

    def _commit(self, directory: Directory | None, names: set[_Key]) -> None:
        """Make the changes in `directory` or of `names` durable, and the earlier ones they rest on."""
        chosen: list[tuple[Naming, ...]] = []
        kept: list[tuple[Naming, ...]] = []
        for namings in reversed(self._pending):
            keys = _keys(namings)
            if namings[-1][0] is directory or keys & names:
                names |= keys
                chosen.append(namings)
            else:
                kept.append(namings)
        for namings in reversed(chosen):
            _make_durable(namings)
        self._pending = kept[::-1]

    def crash(self, random: Random, loss: Loss) -> None:
        undone: set[_Key] = set()
        for namings in self._pending:
            keys = _keys(namings)
            keep = loss is Loss.NONE or (loss is Loss.SOME and random.random() < 0.5)
            if keep and not keys & undone:
                _make_durable(namings)
            else:
                undone |= keys
        self._pending.clear()
        _forget_volatile(self.root)

    def files(self) -> list[tuple[str, FileImage]]:
        """Every named file with its path, sorted by path."""
        found: list[tuple[str, FileImage]] = []
        _collect(self.root, "", found)
        return found


def _keys(namings: tuple[Naming, ...]) -> set[_Key]:
    return {(directory.number, name) for directory, name, _ in namings}


def _make_durable(namings: tuple[Naming, ...]) -> None:
    for directory, name, node in namings:
        _name(directory.durable, name, node)


def _name(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _forget_volatile(directory: Directory) -> None:
    directory.entries = dict(directory.durable)
    for node in directory.entries.values():
        if isinstance(node, Directory):
            _forget_volatile(node)


def _collect(directory: Directory, prefix: str, found: list[tuple[str, FileImage]]) -> None:
    for name in sorted(directory.entries):
        node = directory.entries[name]
        if isinstance(node, Directory):
            _collect(node, f"{prefix}{name}/", found)
        else:
            found.append((prefix + name, node))
