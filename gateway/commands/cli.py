"""The command `sluice`.

Subcommands are the entry points of the group `sluice.commands`, so this module imports neither `publishers`
nor Spark. A subcommand that cannot be imported stays in the list and says what to install. Any other error is
a bug of ours and shows its traceback.
"""

from __future__ import annotations

import codecs
import difflib
import errno
import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click
from click.shell_completion import CompletionItem

from sluice.gateway import __version__
from sluice.gateway.commands.completion import COMPLETE_VARIABLE, command_of, stored_commands
from sluice.gateway.errors import Fatal
from sluice.gateway.logs import is_json, one_line

__all__ = ["COMMAND_GROUP", "Commands", "main", "sluice"]

COMMAND_GROUP = "sluice.commands"
"""Each entry point is a click command."""

STATUS_FAILED = 1
STATUS_USAGE = 2
STATUS_INTERRUPTED = 130

_STANDARD_ERROR = 2

_ENVIRONMENT = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EIO), "room for it"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "to be allowed to use it"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "fewer open files, or a higher limit (ulimit -n)"),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), "a path that can be followed"),
}
"""System errors that are never a bug, and what was expected: a full disk behind `>`, another user's
folder."""
_OF_PROCESS = (errno.EMFILE, errno.ENFILE)
_EXTRA_OF_MODULE = {
    "numpy": "spark",
    "pandas": "spark",
    "py4j": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
}
_LEVELDB = ("plyvel", "plyvel_next")


class Commands(click.Group):
    """A click group that imports a command on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names without an import."""
        return sorted({point.name for point in _commands()} | set(super().list_commands(ctx)))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what may come next without importing the commands."""
        names = [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one was meant: click looks among imported ones only."""
        name = args[0]
        is_word = not name.startswith("-") and not ctx.resilient_parsing
        if is_word and self.get_command(ctx, name) is None:
            near = difflib.get_close_matches(name, self.list_commands(ctx))
            meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {name!r}.{meant}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Name the subcommand in an error of its options, where click does not."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if error.ctx is None and (name := ctx.invoked_subcommand) is not None:
                error.ctx = click.Context(click.Command(name), ctx, name)
            raise

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; if that fails, return one that says what is missing."""
        if os.environ.get(COMPLETE_VARIABLE) and (table := stored_commands().get(cmd_name)) is not None:
            return command_of(cmd_name, table)
        for point in _commands():
            if point.name == cmd_name:
                return _load(point)
        return super().get_command(ctx, cmd_name)


def _commands() -> tuple[EntryPoint, ...]:
    """Tests replace this function."""
    return tuple(entry_points(group=COMMAND_GROUP))


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except ModuleNotFoundError as error:
        return _failing(point.name, _what_to_install(error))
    except Exception as error:
        if not _is_protobuf(error):
            raise
        return _failing(point.name, _what_fits(error))
    assert isinstance(command, click.Command), f"entry point {point.name} is not a click command"
    return command


def _failing(command_name: str, why: str) -> click.Command:
    def fail() -> None:
        raise click.ClickException(f"{command_name} {why}")

    return click.Command(
        command_name,
        callback=fail,
        short_help=why,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        add_help_option=False,
    )


def _what_to_install(error: ModuleNotFoundError) -> str:
    root = (error.name or "").partition(".")[0]
    if extra := _EXTRA_OF_MODULE.get(root):
        return f"needs the extra {extra!r}, which is not installed: pip install 'sluice-gateway[{extra}]'"
    if root in _LEVELDB:
        return (
            "needs LevelDB, which is not there: pip install plyvel-next (on Python 3.11: plyvel); where that "
            "has no wheel, pip builds it with g++ and the headers of libleveldb-dev"
        )
    return f"needs the module {error.name!r}, which is not there: install sluice-gateway again"


def _is_protobuf(error: Exception) -> bool:
    """Return whether protobuf is too old, or another package's modules clash."""
    return type(error).__module__.startswith("google.protobuf") or "descriptor pool" in str(error)


def _what_fits(error: Exception) -> str:
    line = str(error).split("\n", 1)[0]
    return (
        f"needs another protobuf than the one that is imported ({line}): pip install 'protobuf>=7.36,<8', or "
        "give Sluice an environment of its own"
    )


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit status: 0 done, 1 failed, 2 bad usage, 130 interrupted.",
)
@click.version_option(__version__, prog_name="sluice", message="%(prog)s %(version)s")
def sluice() -> None:
    """Block-node publish gateway: racing publishers in over gRPC, verified blocks out over TCP and gRPC."""


def main(args: Sequence[str] | None = None) -> int:
    """Run `sluice`, and return its exit status."""
    # Before gRPC is imported: its fork handlers can abort a child that a library forks before an exec, as
    # PySpark starts its JVM, and no child of ours uses gRPC after a fork.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    _open_standard_streams()
    _let_every_character_through()
    try:
        _refuse_optimized(__debug__)
        status = sluice.main(args=args, prog_name="sluice", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return STATUS_USAGE
    except click.ClickException as error:
        return _fail(_usage_line(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return STATUS_INTERRUPTED
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in (*_EXTRA_OF_MODULE, *_LEVELDB):
            raise
        return _fail(f"sluice: this command {_what_to_install(error)}", STATUS_FAILED)
    except Exception as error:
        if not _is_ours(error):
            if isinstance(error, OSError) and (expected := _ENVIRONMENT.get(error.errno or 0)):
                place = "this process" if error.errno in _OF_PROCESS else "what is written"
                where = error.filename or place
                line = f"sluice: {where}: got {error.strerror}, expected {expected}"
                return _fail(line, STATUS_FAILED)
            raise
        return _fail(f"sluice: {error}", getattr(error, "exit_status", STATUS_FAILED))
    return status if isinstance(status, int) else 0


def _open_standard_streams() -> None:
    """Open /dev/null for each closed standard stream, as after `sluice serve >&-`.

    Otherwise a socket or the stream file gets the number of that stream, and everything that is printed
    there.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        os.set_inheritable(number, True)
    os.close(number)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _let_every_character_through() -> None:
    """Replace characters that the encoding of a standard stream lacks.

    Otherwise finished work ends in a traceback because its table has an ellipsis.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace" if stream.isatty() else "backslashreplace")


def _refuse_optimized(asserts_are_on: bool) -> None:
    """Refuse to run under `python -O`: assertions guard what is written to disk."""
    if not asserts_are_on:
        raise Fatal("python -O", got="assertions switched off", expected="to be started without -O")


def _is_ours(error: Exception) -> bool:
    """Return whether Sluice defines a class of the error."""
    return any(kind.__module__.startswith("sluice.") for kind in type(error).__mro__)


def _usage_line(error: click.ClickException) -> str:
    if not isinstance(error, click.UsageError):
        return f"sluice: {error.format_message()}"
    path = error.ctx.command_path if error.ctx else "sluice"
    return f"{path}: {error.format_message().rstrip('.')} (see: {path} --help)"


def _fail(line: str, status: int) -> int:
    """Control characters are escaped: the text may be a peer's."""
    text = one_line(line.replace("\n\t", " ").replace("\n", " "))  # click indents its lists
    if is_json():
        logging.getLogger("sluice").critical("%s", text)
    else:
        click.echo(text, err=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
