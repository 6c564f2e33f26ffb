"""Ister: a distributed commit log in Python.

    import ister

    async with ister.connect("127.0.0.1:9091") as log:
        await log.append("orders", [b"one", b"two"])
        async for record in log.read("orders"):
            ...

`ister.sync` has the same names for programs without an event loop. What is named here is loaded when it is
first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the one of `typing`, without importing it: type checkers know the name

if TYPE_CHECKING:
    from typing import Any

    from ister.client.deliveries import Batch as Batch
    from ister.client.deliveries import Message as Message
    from ister.client.gathering import Receipt as Receipt
    from ister.client.log import Appended as Appended
    from ister.client.log import Log as Log
    from ister.client.log import connect as connect
    from ister.client.producer import Producer as Producer
    from ister.client.reader import Reader as Reader
    from ister.client.subscription import Subscription as Subscription
    from ister.errors import IsterError as IsterError
    from ister.frame import Frame as Frame
    from ister.frame import Record as Record

__version__ = "0.1.0"

_HOMES = {
    "Appended": "ister.client.log",
    "Batch": "ister.client.deliveries",
    "Frame": "ister.frame",
    "IsterError": "ister.errors",
    "Log": "ister.client.log",
    "Message": "ister.client.deliveries",
    "Producer": "ister.client.producer",
    "Reader": "ister.client.reader",
    "Receipt": "ister.client.gathering",
    "Record": "ister.frame",
    "Subscription": "ister.client.subscription",
    "connect": "ister.client.log",
}
_MODULES = ("errors", "sync")

__all__ = ["__version__", *_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"ister.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ister' has no attribute {name!r}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
