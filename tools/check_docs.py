"""Run every `sh` and `python` block of the READMEs and the guides, so that what they show works; and check their links and their languages.

Blocks run in order, in one folder a page, beside the sample files (documents.csv, train.csv, dev.csv, test.csv, questions/). A block under
`<!-- not run: reason -->` is skipped. A block that stood on an earlier page in the same words is run once. Two pages are run side by side, each on
half of the CPUs: most of the time goes into starting programs, which uses one.

A link must lead to a file, and an anchor to a heading of it. A guide NAME.md that has a Chinese page NAME.zh-CN.md shows the same blocks there, so
that a reader of either can do the same; both link to each other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from twinvec.data.sample import write_sample

ROOT = Path(__file__).resolve().parents[1]
ENGLISH_ONLY = ("cli.md", "decisions.md", "errors.md")  # made from the code, or written for those who change it; nothing in them is run


def _pages(folder: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.md"))


GUIDES = [page for page in _pages("docs") if Path(page).name not in ENGLISH_ONLY]
PAGES = ["README.md", "README.zh-CN.md", *GUIDES]
LINKED = [*PAGES, "CHANGELOG.md", *(f"docs/{name}" for name in ENGLISH_ONLY), *_pages("benchmarks")]
SIDE_BY_SIDE = 2
BLOCK = re.compile(r"(?P<before><!-- not run: [^>]+ -->\n+)?^```(?P<kind>sh|python)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
EVERY_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def blocks(page: str) -> list[tuple[int, str, str]]:
    """(line, kind, code) of the blocks that are run."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start("code")), m["kind"], m["code"]) for m in BLOCK.finditer(text) if not m["before"]]


def run(page: str, todo: list[tuple[int, str, str]]) -> list[str]:
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        write_sample(folder)
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
        environment |= {name: str(Path(folder, ".home")) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME")}  # what a page keeps is its own
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // SIDE_BY_SIDE)))
        for line, kind, code in todo:
            start = time.monotonic()
            command = (
                [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", code]
                if kind == "python"
                else ["bash", "-euo", "pipefail", "-c", code]
            )
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
            print(f"{page}:{line} {kind} {'ok' if done.returncode == 0 else 'FAILED'} ({time.monotonic() - start:.1f} s)", flush=True)
            if done.returncode:
                faults.append(f"{page}:{line}: exit {done.returncode}\n{code}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
    return faults


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a page: those written as <a id>, and those that GitHub makes of headings."""
    text = EVERY_BLOCK.sub("", path.read_text(encoding="utf-8"))
    made = set(re.findall(r'<a id="([^"]+)">', text))
    times: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        made.add(f"{name}-{times[name]}" if name in times else name)
        times[name] = times.get(name, 0) + 1
    return made


def broken_links(page: str) -> list[str]:
    here, faults = ROOT / page, []
    for link, anchor in LINK.findall(EVERY_BLOCK.sub("", here.read_text(encoding="utf-8"))):
        there = here.parent / link if link else here
        if not there.exists():
            faults.append(f"{page}: no such file: {link}")
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            faults.append(f"{page}: no such heading: {link}#{anchor}")
    return faults


def other_language(page: str) -> list[str]:
    """What a guide in English and its Chinese page do not have in common."""
    here = ROOT / page
    if here.name.endswith(".zh-CN.md"):
        return []
    there = here.with_name(f"{here.stem}.zh-CN.md")
    if not there.exists():
        return [f"{page}: no Chinese page {there.name}"]
    english, chinese = here.read_text(encoding="utf-8"), there.read_text(encoding="utf-8")
    links = ((here, english, there), (there, chinese, here))
    faults = [f"{one.name}: no link to {other.name}" for one, text, other in links if f"]({other.name})" not in text]
    ours, theirs = EVERY_BLOCK.findall(english), EVERY_BLOCK.findall(chinese)
    if len(ours) != len(theirs):
        return [*faults, f"{there.name}: {len(theirs)} blocks, {page} has {len(ours)}"]
    return [*faults, *(f"{there.name}: another block than {page}:\n{a}\n{b}" for a, b in zip(ours, theirs, strict=True) if a != b)]


def main() -> None:
    seen: set[tuple[str, str]] = set()
    jobs = []
    for page in PAGES:
        found = blocks(page)
        jobs.append([block for block in found if block[1:] not in seen])
        seen |= {block[1:] for block in found}
    faults = [fault for page in LINKED for fault in broken_links(page)]
    faults += [fault for page in GUIDES for fault in other_language(page)]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for found_faults in pool.map(run, PAGES, jobs):
            faults += found_faults
    for fault in faults:
        print(fault, file=sys.stderr)
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
