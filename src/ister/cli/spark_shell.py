"""`ister spark-shell`: a PySpark prompt over the topics."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from ister.cli.common import client_options, counted, pass_terminal
from ister.cli.spark_options import SparkPlace, spark_options
from ister.cli.terminal import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ister.spark.sessions.views import Views

FAILED: Final = 1
SHOWN_VIEWS: Final = 20
WORD_ENDS: Final = " \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?"


@click.command()
@click.option(
    "-c", "commands", metavar="CODE", multiple=True, help="Run this and leave; may be given several times."
)
@spark_options
@client_options
@pass_terminal
def spark_shell(terminal: Terminal, commands: tuple[str, ...], place: SparkPlace) -> None:
    """A Python prompt with a Spark session, where every topic is a view.

    The topic `orders` is the view orders, and `ns/x` is ns_x: SQL takes no slash, dot or dash in a name.
    The view ister_segments has a row for each segment of each topic. A new query sees new records.

    At the prompt: `spark` is the session, `sql` its query, `log` the log without Spark, and `views` lists the
    views. With IPython installed the prompt is IPython's. In a pipe it runs what it reads as one script; with
    -c or in a pipe the exit code is 1 if that fails.

    \b
    Examples:
      ister spark-shell
      ister spark-shell -c 'sql("select topic, sum(size) from ister_segments group by 1").show()'
      ister spark-shell --master spark://10.0.0.1:7077 --conf spark.executor.memory=4g
      ister spark-shell --remote sc://10.0.0.1:15002 < report.py
    """
    from ister import sync
    from ister.spark.sessions.views import Views

    with sync.connect(terminal.bootstrap) as log, place.session(terminal, "ister spark-shell") as spark:
        views = Views(spark, log, terminal.bootstrap)
        views.refresh()
        keep_fresh(spark, views)
        names = {"spark": spark, "sql": spark.sql, "log": log, "views": views}
        if commands:
            run(commands, names)
        elif terminal.input_is_terminal and terminal.is_terminal:
            interact(terminal, names, greeting(terminal, spark, place, views))
        else:
            run([sys.stdin.read() if sys.stdin is not None else ""], names)


def keep_fresh(spark: SparkSession, views: Views) -> None:
    """Let the session's own `sql` and `table` renew the views that they are about to read."""

    def renewing(read: Any) -> Any:
        @wraps(read)
        def renew_and_read(query: str, *args: Any, **options: Any) -> Any:
            views.renew(query)
            return read(query, *args, **options)

        return renew_and_read

    for name in ("sql", "table"):
        setattr(spark, name, renewing(getattr(spark, name)))


def greeting(terminal: Terminal, spark: SparkSession, place: SparkPlace, views: Views) -> str:
    import ister

    paint = terminal.paint
    shown = list(views.topics)[:SHOWN_VIEWS]
    more = (
        f" and {counted(len(views.topics) - len(shown), 'other')}" if len(views.topics) > len(shown) else ""
    )
    listed = ", ".join(shown) + more if shown else "none yet: there are no topics"
    lines = [
        f"{paint('bold', f'Ister {ister.__version__}')}, Spark {spark.version} at {place}, "
        f"brokers at {terminal.bootstrap}",
        f"  views           {listed}",
        "  ister_segments  the segments of all topics",
        f"  {paint('dim', 'spark, sql, log, views; for example:')} "
        f'sql("select * from ister_segments").show()',
    ]
    return "\n".join(lines)


def run(codes: Iterable[str], names: Mapping[str, Any]) -> None:
    """Each as a script, in one namespace; an error ends it, with its traceback."""
    import traceback

    space = {"__name__": "__main__", **names}
    for code in codes:
        try:
            exec(compile(code, "<ister spark-shell>", "exec"), space)
        except (KeyboardInterrupt, SystemExit, BrokenPipeError):
            raise
        except Exception:
            traceback.print_exc()
            click.get_current_context().exit(FAILED)


def interact(terminal: Terminal, names: Mapping[str, Any], banner: str) -> None:
    try:
        from IPython import start_ipython
    except ImportError:
        return interact_plainly(terminal, names, banner)
    terminal.say(banner)
    start_ipython(argv=["--no-banner"], user_ns=dict(names))
    return None


def interact_plainly(terminal: Terminal, names: Mapping[str, Any], banner: str) -> None:
    from code import InteractiveConsole
    from rlcompleter import Completer

    from ister.cli.shell_history import history, history_path

    space = {"__name__": "__main__", **names}
    completer = Completer(space)

    def complete(before: str, typed: str) -> Iterable[str]:
        number = 0
        while (found := completer.complete(typed, number)) is not None:
            yield found
            number += 1

    with history(history_path(terminal.environ, "spark_shell_history"), complete, WORD_ENDS):
        InteractiveConsole(space).interact(banner=banner, exitmsg="")
