"""`twinvec`: the commands put together, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from twinvec import __version__
from twinvec.cli.compare import compare
from twinvec.cli.console import Console
from twinvec.cli.convert import convert
from twinvec.cli.demo import demo
from twinvec.cli.doctor import doctor
from twinvec.cli.encode import encode
from twinvec.cli.evaluate import evaluate
from twinvec.cli.export import export
from twinvec.cli.index import index
from twinvec.cli.inspect import inspect
from twinvec.cli.mine import group as mine
from twinvec.cli.search import search
from twinvec.cli.similarity import similarity
from twinvec.cli.train import TrainCommand, train
from twinvec.cli.trim import trim
from twinvec.cli.tune import tune
from twinvec.errors import TwinvecError, TwinvecWarning

# typer carries its own click since 0.26 and imports click before; its error classes are found through the one that typer always names.
ClickUsageError: type[Any] = typer.BadParameter.__mro__[1]
ClickError: type[Any] = typer.BadParameter.__mro__[2]

INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143  # 128 + the number of the signal, as shells have it


class Commands(TyperGroup):
    """The group of commands, with our own errors instead of click's and typer's."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run one command. `--debug` may stand anywhere; it shows the traceback of whatever goes wrong."""
        given = list(sys.argv[1:] if args is None else args)
        own = given[: given.index("--")] if "--" in given else given
        debug = "--debug" in own
        given = [arg for arg in own if arg != "--debug"] + given[len(own) :]
        extra = {key: value for key, value in extra.items() if key in ("obj", "default_map")}

        def go() -> int:
            with self.make_context("twinvec", given, **extra) as context:
                self.invoke(context)
            return 0

        code = guarded(go, debug)
        if standalone_mode:
            sys.exit(code)
        return code


class Command(TyperCommand):
    """A command whose usage line names its arguments as its help does."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        names = [str(param.metavar or param.name) for param in arguments]
        return ["[OPTIONS]", *(name if param.required else f"[{name}]" for name, param in zip(names, arguments, strict=True))]


def guarded(go: Callable[[], int], debug: bool = False) -> int:
    """Run `go` and return an exit code: 0 done, 1 failed, 2 wrong usage. Every way to fail is one message; a traceback only with `debug`."""
    Console.current = None
    try:
        with warnings.catch_warnings():
            if not debug:  # what other libraries warn of is for developers
                warnings.simplefilter("ignore")
            warnings.simplefilter("always", TwinvecWarning)
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            code = go()
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted", debug)
        return INTERRUPTED
    except typer.Exit as stop:
        return int(stop.exit_code)
    except ClickError as err:
        return _usage(err, debug)
    except TwinvecError as err:
        _say(f"error: {err}", debug)
        return err.exit_code
    except OSError as err:
        name = f"{err.filename}: " if err.filename else ""
        _say(f"error: {name}{(err.strerror or str(err)).lower()}", debug)
        return 1
    except MemoryError:
        _say("error: out of memory; give fewer or shorter texts at once, or a smaller --batch-tokens", debug)
        return 1
    except Exception as err:
        first = (str(err).strip().splitlines() or [""])[0][:300]
        _say(f"error: {type(err).__name__}: {first} (unexpected; --debug shows the traceback)", debug)
        return 1


def _drop_output() -> None:
    """The reader of standard output has gone (as `head` does): nothing is wrong, and the interpreter must not flush into the closed pipe at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # standard output is no real file, as in a test
        pass


def _usage(err: Any, debug: bool) -> int:
    if type(err).__name__ == "NoArgsIsHelpError":
        print(err.ctx.get_help(), file=sys.stderr)
        return 2
    path = err.ctx.command_path if getattr(err, "ctx", None) is not None else "twinvec"
    _say(f"error: {' '.join(str(err.format_message()).split())}\nTry: {path} --help", debug)
    return int(err.exit_code)


def _say(message: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    print(f"twinvec: {message}", file=sys.stderr, flush=True)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    if issubclass(category, TwinvecWarning):
        (Console.current or Console()).note(str(message))
    else:  # only with --debug
        print(f"{filename}:{lineno}: {category.__name__}: {message}", file=sys.stderr)


app = typer.Typer(
    name="twinvec",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help pages: no import of rich, and the same text in a pipe
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
)


def _version(value: bool) -> None:
    if value:
        print(f"twinvec {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error; may stand anywhere")] = False,
) -> None:
    """Sentence embeddings whole: train, measure, encode, store and search, in English and Chinese.

    MODEL is 'minilm' (the packaged model), a model folder, or a hub id. Every command takes --help, and --json for one JSON object on
    standard output. Exit status: 0 done, 1 failed, 2 wrong usage.

    \b
    Example:
      twinvec similarity minilm "A man plays a guitar" "Someone makes music"
    """


# In the order of the help page.
for _command in (demo, train, evaluate, compare, encode, similarity, index, search, inspect, convert, trim, export, tune, doctor):
    app.command(_command.__name__, cls=TrainCommand if _command is train else Command)(_command)
app.add_typer(mine(Command), name="mine")


def _terminate(signum: int, frame: Any) -> None:
    raise SystemExit(TERMINATED)


def main() -> None:
    """The entry point of the `twinvec` command."""
    signal.signal(signal.SIGTERM, _terminate)  # unwinds, so that half-written files are removed
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character is no reason to fail
    app()


if __name__ == "__main__":
    main()
