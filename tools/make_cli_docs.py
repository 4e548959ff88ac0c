"""Write docs/cli.md from the command line itself; with --check only say whether it is up to date (exit status 1 when it is not)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from twinvec.cli.main import app
from twinvec.cli.train import real_command

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
HEAD = """# The command line

<!-- Written by tools/make_cli_docs.py from the commands themselves; change the help texts there, then run it again. -->
"""


def page() -> str:
    """The whole page."""
    group: Any = typer.main.get_command(app)
    commands = dict(leaves(group))
    text, example = split_help(group.help)
    parts = [HEAD, text, block(example, "sh"), "| command | purpose |\n|---|---|"]
    parts[-1] += "".join(f"\n| [{name}](#twinvec-{name.replace(' ', '-')}) | {purpose(command)} |" for name, command in commands.items())
    parts += [options(group), *(section(name, command) for name, command in commands.items())]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def leaves(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """(name, command) of every command, those of a group under the group's name: "mine negatives"."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", real_command() if before + name == "train" else command


def section(name: str, command: Any) -> str:
    """One command: purpose, usage, arguments, options, example."""
    text, example = split_help(command.help)
    context = command.make_context(f"twinvec {name}", [], resilient_parsing=True)
    usage = " ".join([f"twinvec {name}", *command.collect_usage_pieces(context)])
    return "\n\n".join(
        part for part in (f"## twinvec {name}", text, block(usage, ""), arguments(command), options(command), block(example, "sh")) if part
    )


def purpose(command: Any) -> str:
    return str(command.help).strip().splitlines()[0].strip()


def split_help(help: str) -> tuple[str, str]:
    """The paragraphs of a help text, each on one line, and the lines of its example."""
    text, _, example = help.replace("\b", "").partition("Example:")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph), "\n".join(line.strip() for line in example.strip().splitlines())


def block(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```" if text else ""


def arguments(command: Any) -> str:
    found = [param for param in command.params if param.param_type_name == "argument"]
    rows = [f"| `{cell(param.metavar or param.name)}` | {cell(param.help)}{'' if param.required else ' (may be left out)'} |" for param in found]
    return "\n".join(["| argument | what it is |", "|---|---|", *rows]) if rows else ""


def options(command: Any) -> str:
    found = [param for param in command.params if param.param_type_name == "option"]
    rows = [f"| `{cell(flags(param))}` | {cell(said(param)[0])}{'; required' if param.required else ''} | {default(param)} |" for param in found]
    return "\n".join(["| option | what it does | default |", "|---|---|---|", *rows]) if rows else ""


def said(param: Any) -> tuple[str, str]:
    """Help text and default of an option of `train`, whose own default is None ("not given") and whose recipe's default is told in the text."""
    text, _, default = str(param.help).partition("  [default: ")
    return text, default.removesuffix("]")


def flags(param: Any) -> str:
    names = ", ".join([*sorted(param.opts, key=len), *param.secondary_opts])
    return names if param.is_flag else f"{names} {param.metavar or param.name.upper()}"


def default(param: Any) -> str:
    if said(param)[1]:
        return f"`{cell(said(param)[1])}`"
    shown = param.show_default and param.default not in (None, False, "") and not callable(param.default)
    return f"`{param.default}`" if shown else ""


def cell(text: Any) -> str:
    return " ".join(str(text or "").split()).replace("|", "\\|")


def main() -> int:
    made = page()
    if "--check" in sys.argv[1:]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == made:
            return 0
        print(f"{PAGE} is stale; run: python tools/make_cli_docs.py", file=sys.stderr)
        return 1
    PAGE.write_text(made, encoding="utf-8")
    print(f"{PAGE}: {len(made.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
