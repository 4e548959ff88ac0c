"""docs/cli.md is what the commands say of themselves; the check of the guides finds a broken link and a page that fell behind its other language."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scripts import script

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_cli_docs.py"), "--check"]
    found = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/check_docs.py over a folder of its own."""
    module = script("tools/check_docs.py")
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def _pages(check: ModuleType, english: str, chinese: str | None) -> list[str]:
    (check.ROOT / "docs" / "a.md").write_text(english, encoding="utf-8")
    if chinese is not None:
        (check.ROOT / "docs" / "a.zh-CN.md").write_text(chinese, encoding="utf-8")
    pages = ["docs/a.md", *(["docs/a.zh-CN.md"] if chinese is not None else [])]
    return [fault for page in pages for fault in [*check.broken_links(page), *check.other_language(page)]]


ENGLISH = "# A\n\n[中文版](a.zh-CN.md)\n\n## What does `0.83` mean?\n\n[there](#what-does-083-mean)\n\n```sh\ntwinvec doctor  # [no](link)\n```\n"
CHINESE = (
    '# 甲\n\n[English](a.md)\n\n<a id="old"></a>\n## 0.83 是什么意思？\n\n'
    "[那里](#083-是什么意思)、[旧](a.zh-CN.md#old)\n\n```sh\ntwinvec doctor  # [no](link)\n```\n"
)


def test_pages_that_agree(check: ModuleType) -> None:
    assert _pages(check, ENGLISH, CHINESE) == []


@pytest.mark.parametrize(
    ("english", "chinese", "fault"),
    [
        (ENGLISH, None, "no Chinese page a.zh-CN.md"),
        (ENGLISH.replace("#what-does", "#who-does"), CHINESE, "docs/a.md: no such heading: #who-does-083-mean"),
        (ENGLISH, CHINESE.replace("#old", "#older"), "docs/a.zh-CN.md: no such heading: a.zh-CN.md#older"),
        (ENGLISH, CHINESE + "\n[x](gone.md)\n", "docs/a.zh-CN.md: no such file: gone.md"),
        (ENGLISH, CHINESE.replace("[English](a.md)", ""), "a.zh-CN.md: no link to a.md"),
        (ENGLISH, CHINESE.replace("doctor", "demo"), "a.zh-CN.md: another block than docs/a.md"),
        (ENGLISH + "\n```python\n1\n```\n", CHINESE, "a.zh-CN.md: 1 blocks, docs/a.md has 2"),
    ],
)
def test_pages_that_do_not(check: ModuleType, english: str, chinese: str | None, fault: str) -> None:
    found = _pages(check, english, chinese)
    assert any(fault in line for line in found), found
