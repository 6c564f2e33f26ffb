"""A group of commands that are imported when one of them is used, and not to list them."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import click


class LazyCommand(NamedTuple):
    """Where a command is, and the line that the list shows for it."""

    location: str
    about: str


class LazyGroup(click.Group):
    def __init__(self, *args: Any, lazy: dict[str, LazyCommand] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        # In the order of the table: the way a person meets them, not the alphabet's.
        return [*self.lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self.lazy.get(cmd_name)
        if found is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = found.location.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{found.location} is no command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self.list_commands(ctx)
        if name in known or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from ister.settings import did_you_mean

        raise click.UsageError(f"there is no command {name!r}{did_you_mean(name, known)}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, found.about) for name, found in self.lazy.items()]
        for name, command in self.commands.items():
            rows.append((name, command.get_short_help_str(90)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
