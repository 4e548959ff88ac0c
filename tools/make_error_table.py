"""Write docs/errors.md: what each bad input is answered with, as the tests got it.

    python tools/make_error_table.py           # runs the tests of bad inputs and writes the page

Every case is a test (tests/*/test_*_bad_inputs.py and the recipe tests); the message is recorded by the test that pins it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "data": "Data files, columns, labels",
    "training": "Recipes",
    "runs": "Training runs",
    "objectives": "Losses",
    "model": "Model folders and names",
    "mining": "Mining and cross-encoders",
    "index": "Collections and vectors",
    "search": "Searching",
    "remote": "Collections on servers",
    "scale": "Encoding any number of texts",
    "evaluation": "Evaluation",
    "cli": "The command line",
}


def cases() -> list[tuple[str, str, str]]:
    """(room, name of the case, message) of every test that recorded a message."""
    files = [*sorted(str(path) for path in (ROOT / "tests").glob("*/test_*_bad_inputs.py")), str(ROOT / "tests/training/test_training_recipe.py")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-o", "junit_family=legacy", f"--junitxml={report}", f"--basetemp={folder}/t"]
        done = subprocess.run([sys.executable, "-m", "pytest", *files, *options], cwd=ROOT, check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        found = []
        for case in ElementTree.parse(report).iter("testcase"):
            for prop in case.iter("property"):
                name = re.search(r"\[(.*)\]", case.get("name", ""))
                if prop.get("name") == "message" and name:
                    room = case.get("classname", "").split(".")[1]
                    found.append((room, name[1], tidy(prop.get("value", ""), folder)))
    return found


def tidy(message: str, folder: str) -> str:
    """Without the folders of this machine, and as a cell of a table."""
    message = re.sub(rf"{re.escape(folder)}/t/[^/\s:'\"]+/?", "", message)
    message = message.replace(str(ROOT), ".").replace(str(Path(sys.prefix)), "ENV").replace("|", "\\|")
    return re.sub(r"0x[0-9a-f]+", "0x...", message)


def main() -> None:
    rows = cases()
    lines = [
        "# What each mistake is answered with",
        "",
        f"{len(rows)} bad inputs and their messages, as the tests get them. Made by `python tools/make_error_table.py`; every row is a test.",
        "At the command line a message stands on one line after `twinvec: error:`; the exit status is 2 for wrong usage and 1 for a failure.",
    ]
    for room, title in ROOMS.items():
        lines += ["", f"## {title}", "", "| input | message |", "|---|---|"]
        lines += [f"| {name} | {message} |" for place, name, message in rows if place == room]
    (ROOT / "docs" / "errors.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"docs/errors.md: {len(rows)} rows")


if __name__ == "__main__":
    main()
