"""Which column is which: by name, in English and Chinese, or by `--columns`. Never by position unless positions were given."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Mapping as MappingLike
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

from twinvec.errors import DataError, UsageError, nearest

Kind = Literal["scores", "pairs", "nli", "triplets", "texts", "parallel", "labelled"]
KINDS: Final[tuple[Kind, ...]] = ("scores", "pairs", "nli", "triplets", "texts", "parallel", "labelled")
Shape = Literal["pair", "triplets", "parallel", "text"]
SHAPE_OF: Final[dict[str, Shape]] = {
    "scores": "pair", "pairs": "pair", "nli": "pair", "triplets": "triplets", "parallel": "parallel", "texts": "text", "labelled": "text",
}  # fmt: skip

PAIR: Final[Shape] = "pair"
SHAPE_BY_ROLE: Final[dict[str, Shape]] = {"sentence1": "pair", "sentence2": "pair", "source": "parallel", "target": "parallel", "text": "text"}

# Names are compared after NFKC, lower case, and without spaces and the signs _ - . so that "Sentence_A" is "sentencea".
PAIRS: Final = (
    ("sentence1", "sentence2"), ("sentencea", "sentenceb"), ("sent1", "sent2"), ("sent0", "sent1"), ("text1", "text2"), ("texta", "textb"),
    ("question1", "question2"), ("query1", "query2"), ("q1", "q2"), ("s1", "s2"), ("#1string", "#2string"),
    ("premise", "hypothesis"), ("question", "answer"), ("query", "answer"), ("query", "document"), ("query", "passage"), ("query", "response"),
    ("anchor", "positive"), ("anchor", "pos"), ("query", "positive"), ("query", "pos"), ("question", "positive"),
    ("句子1", "句子2"), ("句子一", "句子二"), ("句子a", "句子b"), ("文本1", "文本2"), ("问题1", "问题2"), ("问句1", "问句2"), ("语句1", "语句2"),
    ("前提", "假设"), ("问题", "答案"), ("问题", "回答"), ("查询", "文档"), ("查询", "答案"), ("锚点", "正例"),
)  # fmt: skip
INFERENCE: Final = (("premise", "hypothesis"), ("前提", "假设"))
PARALLEL: Final = (
    ("source", "target"), ("src", "tgt"), ("english", "chinese"), ("en", "zh"), ("原文", "译文"), ("英文", "中文"), ("源文", "译文"),
    ("源语言", "目标语言"),
)  # fmt: skip
ANCHORS: Final = ("anchor", "query", "question", "sentence", "sent0", "text", "锚点", "查询", "问题", "句子")
POSITIVES: Final = ("positive", "pos", "positivetext", "sent1", "正例", "正样本")
NEGATIVE: Final = re.compile(r"(negative|neg|hardneg|hardnegative|负例|负样本)(\d*)")
TEXTS: Final = ("text", "sentence", "question", "query", "content", "文本", "句子", "问题", "问句", "语句", "查询", "内容")
SCORES: Final = (
    "score", "scores", "similarity", "similarityscore", "sim", "relatedness", "relatednessscore", "goldscore", "分数", "得分", "评分", "相似度",
    "相关度",
)  # fmt: skip
LABELS: Final[tuple[str, ...]] = ("label", "labels", "goldlabel", "isduplicate", "entailmentjudgment", "quality", "标签", "标注")
MARGINS: Final = ("margin", "margins", "scoremargin", "分差")  # of triplets: how much better the positive fits than the negative
GROUPS: Final = ("group", "groupid", "分组", "组号")  # rows of one group mean the same thing
CLASSES: Final[tuple[str, ...]] = ("class", "category", "intent", "类别", "意图", "分类")  # looked at when there is none of LABELS
# A numeric column of one of these names is a number of the row, never a forgotten label.
ROW_NUMBERS: Final = re.compile(r"column\d+|unnamed:?\d*|index|idx|(.*id\d?)|row|line|year|no|编号|序号|行号|年份")

# Other names for a role in --columns.
ROLE_NAMES: Final = {
    "premise": "sentence1", "hypothesis": "sentence2", "text1": "sentence1", "text2": "sentence2", "score": "label", "class": "label",
    "query": "anchor", "question": "anchor", "answer": "sentence2", "negative_1": "negative", "margin": "label", "group_id": "group",
}  # fmt: skip
ORDER: Final[dict[str, tuple[str, ...]]] = {
    "scores": ("sentence1", "sentence2", "label"), "pairs": ("sentence1", "sentence2", "label"), "nli": ("sentence1", "sentence2", "label"),
    "triplets": ("anchor", "positive", "negative"), "parallel": ("source", "target"), "texts": ("text",), "labelled": ("text", "label"),
}  # fmt: skip
ROLES: Final = ("sentence1", "sentence2", "label", "anchor", "positive", "negative", "source", "target", "text", "group")


@dataclass(frozen=True)
class Mapping:
    """Which column became what. `texts`: role -> column, in the order in which the kind wants them; `label`, `group`: their columns or None.

    `meaning`: "score" or "label" by the label column's name ("" when --columns named it); `inference`: the pair was called premise and hypothesis.
    """

    shape: Shape
    texts: dict[str, str]
    label: str | None
    meaning: Literal["score", "label", ""] = ""
    inference: bool = False
    group: str | None = None
    unused: list[str] = field(default_factory=list)


def plain(name: str) -> str:
    """The form in which column names are compared."""
    return re.sub(r"[\s_\-.]", "", unicodedata.normalize("NFKC", name).casefold())


def is_known(name: str) -> bool:
    """Whether a cell looks like a column name of any of the lists above."""
    key = plain(name)
    listed = {*TEXTS, *SCORES, *LABELS, *CLASSES, *ANCHORS, *POSITIVES, *(part for family in (*PAIRS, *PARALLEL) for part in family)}
    return key in listed or NEGATIVE.fullmatch(key) is not None


Columns = str | MappingLike[str, str | int]  # the option `columns`


def parse_columns(columns: Columns | None, kind: Kind | None) -> dict[str, str]:
    """'sentence1=q,sentence2=a,label=y', or 'q,a,y' with a kind, as role -> column name or position. A part with a comma stands in double quotes.

    UsageError: an unknown role, a role or column twice, a plain list without a kind.
    """
    if columns is None:
        return {}
    if not isinstance(columns, str):
        parts = [(str(role), str(name)) for role, name in columns.items()]
    else:
        items = [item.strip() for item in next(csv.reader([columns], skipinitialspace=True), [])]
        if not items or not all(items):
            raise UsageError(f"--columns {columns!r}: an empty part; wanted ROLE=COLUMN,..., for example sentence1=q,sentence2=a,label=y")
        split = [item.partition("=") for item in items]
        if not any(equals for _, equals, _ in split):
            return _plain_list(columns, items, kind)
        parts = [(role.strip(), name.strip()) for role, _, name in split]
    found: dict[str, str] = {}
    for role, name in parts:
        wanted = role_of(role)
        if wanted is None:
            raise UsageError(f"--columns {columns!r}: roles are {', '.join(ROLES)}, negative_2, ..., not {role!r}{nearest(role, ROLES)}")
        if not name:
            raise UsageError(f"--columns {columns!r}: no column for {role!r}; wanted ROLE=COLUMN,..., for example sentence1=q,sentence2=a,label=y")
        if wanted in found:
            raise UsageError(f"--columns {columns!r}: {wanted!r} is given twice ({found[wanted]!r} and {name!r})")
        found[wanted] = name
    _no_repeats(columns, found)
    return found


def role_of(role: str) -> str | None:
    role = role.strip().casefold()
    role = ROLE_NAMES.get(role, role)
    return role if role in ROLES or re.fullmatch(r"negative_[2-9]\d*|negative_1\d+", role) else None


def _plain_list(columns: str, items: list[str], kind: Kind | None) -> dict[str, str]:
    if kind is None:
        raise UsageError(
            f"--columns {columns!r}: a plain list needs --kind ({'|'.join(KINDS)}), or say which is which, as in sentence1=q,sentence2=a,label=y"
        )
    order = list(ORDER[kind])
    if kind == "triplets":
        order += [f"negative_{i}" for i in range(2, len(items) - 1)]
    least = len(order) - (kind == "pairs")  # pairs may do without a label
    if not least <= len(items) <= len(order):
        raise UsageError(f"--columns {columns!r}: {len(items)} columns, but kind {kind!r} wants {len(order)}: {','.join(order)}")
    found = dict(zip(order, items, strict=False))
    _no_repeats(columns, found)
    return found


def _no_repeats(columns: Columns, found: dict[str, str]) -> None:
    for name in found.values():
        roles = [role for role, other in found.items() if other == name]
        if len(roles) > 1:
            raise UsageError(f"--columns {columns!r}: column {name!r} is given twice, as {' and '.join(roles)}")


def are_positions(chosen: MappingLike[str, str]) -> bool:
    return bool(chosen) and all(re.fullmatch(r"[1-9]\d*", name, re.ASCII) for name in chosen.values())


def map_columns(names: Sequence[str], source: str, kind: Kind | None = None, chosen: MappingLike[str, str] | None = None) -> Mapping:
    """Find the columns of a kind among `names`. `chosen`: what `parse_columns` gave; roles left out there are still found by name.

    `source` is the file's name, for messages. UsageError: a chosen column is not there; DataError: nothing found, or more than one way to read it.
    """
    picked = {role: _resolve(name, names, source) for role, name in (chosen or {}).items()}
    _no_repeats(", ".join(f"{role}={name}" for role, name in (chosen or {}).items()), picked)
    free = [name for name in names if name not in picked.values()]
    finder = _Finder(free, source, kind, picked, names)
    shape = SHAPE_OF[kind] if kind else finder.shape()
    texts, inference = finder.texts(shape)
    label, meaning = finder.label(shape, texts)
    group = finder.group(shape, {*texts.values(), label})
    used = {*texts.values(), label, group}
    picked = finder.picked  # now under the roles of the shape
    found = {**texts, "label": label, "group": group}
    ignored = [role for role in picked if found.get(role) is None]
    if ignored:
        raise UsageError(f"{source}: --columns gives {', '.join(ignored)}, which {_a_kind(kind, shape)} has no use for")
    return Mapping(shape, texts, label, meaning, inference, group, [name for name in names if name not in used])


def _a_kind(kind: Kind | None, shape: Shape) -> str:
    return f"kind {kind!r}" if kind else {"pair": "a file of pairs", "text": "a file of texts"}.get(shape, f"a file of kind {shape!r}")


def _resolve(name: str, names: Sequence[str], source: str) -> str:
    """A column by its name, its name in any case, or its position from 1."""
    if name in names:
        return name
    close = [other for other in names if plain(other) == plain(name)]
    if len(close) == 1:
        return close[0]
    if name.isascii() and name.isdigit():
        if 1 <= int(name) <= len(names):
            return names[int(name) - 1]
        raise UsageError(f"{source}: --columns asks for column {name}, but there are {len(names)} ({_listed(names)})")
    raise UsageError(f"{source}: --columns names {name!r}, but the columns are {_listed(names)}{nearest(name, names)}")


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name if len(name) <= 40 else name[:40] + "...") for name in names]
    return ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else "")


class _Finder:
    """One look at the free columns of one file."""

    def __init__(self, free: Sequence[str], source: str, kind: Kind | None, picked: dict[str, str], names: Sequence[str]) -> None:
        self.source, self.kind, self.picked, self.names = source, kind, picked, names
        self.keys: dict[str, str] = {}
        self.twice: dict[str, list[str]] = {}
        for name in free:
            if plain(name) in self.keys:
                self.twice.setdefault(plain(name), [self.keys[plain(name)]]).append(name)
            self.keys.setdefault(plain(name), name)

    def take(self, key: str, role: str) -> str:
        """The column of a key; ambiguous when two columns have it."""
        if key in self.twice:
            names = self.twice[key]
            self.ambiguous(f"{_listed(names)} are the same name but for case and signs", **{role: names[0]})
        return self.keys[key]

    def families(self, families: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """The families of names that are there as a whole."""
        return [(a, b) for a, b in families if a in self.keys and b in self.keys]

    def pairs(self) -> list[tuple[str, str]]:
        found = self.families(PAIRS)
        # sent0, sent1 and sent2 together are SimCSE's; text1 is no sent1.
        if ("sent0", "sent1") in found and ("sent1", "sent2") in found:
            found.remove(("sent1", "sent2"))
        return found

    def negatives(self) -> list[str]:
        """Columns of negatives in the order of their numbers, none first."""
        matches = [(match, key) for key in self.keys if (match := NEGATIVE.fullmatch(key))]
        return [self.take(key, "negative") for match, key in sorted(matches, key=lambda found: int(found[0][2] or 0))]

    def shape(self) -> Shape:
        roles = set(self.picked)
        if any(role.startswith("negative") for role in roles) or (not roles & SHAPE_BY_ROLE.keys() and self._triplets()):
            return "triplets"
        for role, shape in {**SHAPE_BY_ROLE, "anchor": PAIR}.items():
            if role in roles:
                return shape
        shapes: list[Shape] = []
        if self.pairs():
            shapes.append("pair")
        if self.families(PARALLEL):
            shapes.append("parallel")
        paired = {part for family in (*self.pairs(), *self.families(PARALLEL)) for part in family}
        texts = [self.keys[key] for key in TEXTS if key in self.keys and key not in paired]
        if not shapes and texts:
            return "text"
        if len(shapes) == 1 and not texts:
            return shapes[0]
        if not shapes:
            self.nothing("a pair (sentence1/sentence2, premise/hypothesis, 句子1/句子2, ...), anchor/positive/negative, source/target or text")
        found = [*self.pairs(), *self.families(PARALLEL)]
        shown = [f"{self.keys[a]}/{self.keys[b]}" for a, b in found]
        self.ambiguous(
            f"{' and '.join([*shown, *texts])} could each be the texts", sentence1=self.keys[found[0][0]], sentence2=self.keys[found[0][1]]
        )

    def _triplets(self) -> bool:
        positive = "positive" in self.picked or any(key in self.keys for key in POSITIVES)
        return positive and bool(self.negatives())

    def texts(self, shape: Shape) -> tuple[dict[str, str], bool]:
        if shape == "text":
            return {"text": self._one("text", TEXTS)}, False
        if shape == "triplets":
            return self._three(), False
        first, second = ("source", "target") if shape == "parallel" else ("sentence1", "sentence2")
        given = {first: self.picked.get(first), second: self.picked.get(second)}
        if shape == "pair":  # an anchor and its positive are a pair too
            given = {first: given[first] or self.picked.get("anchor"), second: given[second] or self.picked.get("positive")}
        if given[first] and given[second]:
            chosen = {role: name for role, name in given.items() if name}
            self.picked = {role: name for role, name in self.picked.items() if role not in ("anchor", "positive")} | chosen
            inference = (plain(chosen[first]), plain(chosen[second])) in INFERENCE
            return chosen, inference
        own = PARALLEL if shape == "parallel" else PAIRS
        found = self.families(own) if shape == "parallel" else self.pairs()
        if not found and self.kind:  # the kind was asked for, so the other kind of pair will do
            found = self.pairs() if shape == "parallel" else self.families(PARALLEL)
        if any(given.values()):
            missing = next(role for role, name in given.items() if not name)
            self.nothing(f"{missing} (--columns gives only the other side)")
        if not found:
            self.nothing(f"{first} and {second}")
        if len(found) > 1:
            shown = " and ".join(f"{self.keys[a]}/{self.keys[b]}" for a, b in found)
            example = dict(zip((first, second), (self.keys[key] for key in found[0]), strict=True))
            self.ambiguous(f"{shown} could each be {first} and {second}", **example)
        a, b = found[0]
        return {first: self.take(a, first), second: self.take(b, second)}, (a, b) in INFERENCE

    def _three(self) -> dict[str, str]:
        found = {"anchor": self._one("anchor", ANCHORS), "positive": self._one("positive", POSITIVES)}
        given = sorted((role for role in self.picked if role.startswith("negative")), key=lambda role: int(role.partition("_")[2] or 1))
        negatives = [self.picked[role] for role in given] or self.negatives()
        if not negatives:
            self.nothing("negative (or negative_1, negative_2, ...)")
        for i, name in enumerate(negatives, start=1):
            found["negative" if i == 1 else f"negative_{i}"] = name
        self.picked = {role: name for role, name in self.picked.items() if not role.startswith("negative")} | {
            role: name for role, name in found.items() if role.startswith("negative")
        }
        return found

    def _one(self, role: str, aliases: Sequence[str]) -> str:
        if role in self.picked:
            return self.picked[role]
        found = [key for key in aliases if key in self.keys]
        if not found and role == "text" and len(self.names) == 1 and self.kind in ("texts", None) and self.names[0] == "text":
            return self.names[0]
        if not found:
            self.nothing(role)
        if len(found) > 1:
            self.ambiguous(f"{' and '.join(self.keys[key] for key in found)} could each be {role}", **{role: self.keys[found[0]]})
        return self.take(found[0], role)

    def label(self, shape: Shape, texts: dict[str, str]) -> tuple[str | None, Literal["score", "label", ""]]:
        """The label's column. A score for kind "scores", a label for the others; with no kind, whichever is there alone."""
        if shape == "parallel" or self.kind == "texts":
            return None, ""
        if "label" in self.picked:
            return self.picked["label"], ""
        taken = set(texts.values())
        if shape == "triplets":  # only what is called a margin: a score or label there may mean anything
            return self._optional("label", MARGINS, taken), ""
        scores = [key for key in SCORES if key in self.keys and self.keys[key] not in taken] if shape == "pair" else []
        labels = [key for key in LABELS if key in self.keys and self.keys[key] not in taken]
        labels = labels or [key for key in CLASSES if key in self.keys and self.keys[key] not in taken]
        first, second = (scores, labels) if self.kind == "scores" else (labels, scores)
        candidates = (first or second) if self.kind else [*first, *second]
        if len(candidates) > 1:
            several = [self.keys[key] for key in candidates]
            self.ambiguous(f"{' and '.join(several)} could each be the label", label=several[0])
        if candidates:
            return self.take(candidates[0], "label"), "score" if candidates[0] in scores else "label"
        if self.kind in ("scores", "nli", "labelled"):
            self.nothing("label (or score, similarity, class, 标签, 分数, ...)", only="label")
        return None, ""

    def group(self, shape: Shape, taken: set[str | None]) -> str | None:
        """The column whose equal values mark rows that are no negatives of each other; pairs and triplets have one, or none."""
        if shape not in ("pair", "triplets"):
            return None
        return self.picked["group"] if "group" in self.picked else self._optional("group", GROUPS, taken)

    def _optional(self, role: str, aliases: Sequence[str], taken: Collection[str | None]) -> str | None:
        found = [key for key in aliases if key in self.keys and self.keys[key] not in taken]
        if len(found) > 1:
            several = [self.keys[key] for key in found]
            self.ambiguous(f"{' and '.join(several)} could each be the {role}", **{role: several[0]})
        return self.take(found[0], role) if found else None

    def ambiguous(self, what: str, **example: str) -> NoReturn:
        raise DataError(f"{self.source}: {what}; say which with --columns, for example --columns {_option(example)}")

    def nothing(self, wanted: str, *, only: str = "") -> NoReturn:
        """`only`: the one role that is missing, when all others are there."""
        said = f"{self.source}: no column for {wanted} among {_listed(self.names)}"
        if len(self.names) == 1:
            for mark, advice in (("\t", "give --format tsv"), (",", "give --format csv"), (";", "save the file with commas")):
                if mark in self.names[0]:
                    raise DataError(f"{said}; the columns seem to be separated by {mark!r}: {advice}")
        free = [name for name in self.names if name not in self.picked.values()]
        example = {only: free[-1]} if only and free else self.example()
        positions = {role: str(self.names.index(name) + 1) for role, name in self.example().items()}
        raise DataError(
            f"{said}; say which is which with --columns, for example --columns {_option(example)} "
            f"(or by position if the file has no header: --columns {_option(positions)})"
        )

    def example(self) -> dict[str, str]:
        """The roles of the kind over the file's own columns, in their order, labels by their names: to be corrected by its reader."""
        marks = [name for name in self.names if plain(name) in {*LABELS, *SCORES, *CLASSES}]
        texts = [name for name in self.names if name not in marks and not ROW_NUMBERS.fullmatch(plain(name))]
        if self.kind is None:
            kind: Kind = "texts" if len(texts) < 2 else "pairs"
        else:
            kind = self.kind
        roles = [role for role in ORDER[kind] if role != "label"]
        found = dict(zip(roles, texts or self.names, strict=False))
        rest = [*marks, *texts[len(roles) :]]
        return {**found, "label": rest[0]} if "label" in ORDER[kind] and rest else found


def _option(columns: MappingLike[str, str]) -> str:
    """The columns as the option is written; a part with a comma in it stands in double quotes."""
    parts = [f"{role}={name if len(name) <= 40 else name[:40] + '...'}" for role, name in columns.items()]
    return ",".join('"' + part.replace('"', '""') + '"' if "," in part or '"' in part else part for part in parts)
