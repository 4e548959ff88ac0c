"""What `twinvec index` and `twinvec inspect` say of a collection."""

from __future__ import annotations

from typing import Any

from twinvec.cli.console import bytes_text, pairs


def added_lines(payload: dict[str, Any], info: dict[str, Any], built: dict[str, Any]) -> list[str]:
    """After documents were added."""
    counts = f"{payload['added']:,} added, {payload['replaced']:,} replaced, {payload['unchanged']:,} unchanged, {payload['without_vector']:,} empty"
    rate = f", {payload['encoded'] / payload['seconds']:.0f} texts/s" if payload["encoded"] and payload["seconds"] else ""
    return [f"{payload['collection']}: {counts} ({payload['seconds']:.1f} s{rate})", *_state(info, built)]


def changed_lines(payload: dict[str, Any], info: dict[str, Any]) -> list[str]:
    """After something else was done."""
    said = []
    if "deleted" in payload:
        of = "" if payload["asked"] is None else f" of {payload['asked']:,} ids"
        said.append(f"{payload['deleted']:,}{of} documents deleted")
    if "reindexed" in payload:
        found = payload["reindexed"]
        kept = f", {found['resumed']:,} were there from a move that was stopped" if found.get("resumed") else ""
        said.append(f"moved to {payload['model']}: {found['encoded']:,} passages encoded{kept} ({found['seconds']:.1f} s)")
    return [f"{payload['collection']}: {'; '.join(said) or 'done'}", *_state(info, payload)]


def _state(info: dict[str, Any], built: dict[str, Any]) -> list[str]:
    prompts = {name: info.get(f"{name}_prompt") for name in ("document", "query") if info.get(f"{name}_prompt")}
    total = sum(info.get(name, 0) for name in ("vector_bytes", "index_bytes", "database_bytes"))
    return [
        *pairs(
            [
                ("documents", f"{info['documents']:,}" + passages_text(info)),
                ("model", f"{info['model']} ({info['dimensions']} dimensions)"),
                ("prompts", ", ".join(f"{name} {value!r}" for name, value in prompts.items()) or None),
                ("search", search_text(info)),
                ("compacted", _compacted(built.get("compacted"))),
                ("indexed fields", ", ".join(built["fields"]) if built.get("fields") else None),
                ("on disk", bytes_text(total) if total else None),
            ]
        ),
        *(f"  advice: {line}" for line in info.get("advice", [])),
    ]


def passages_text(info: dict[str, Any]) -> str:
    """', in 12 passages' where documents were cut."""
    passages, searchable = info.get("passages"), info.get("searchable")
    return f", in {passages:,} passages" if passages is not None and searchable is not None and passages > searchable else ""


def search_text(info: dict[str, Any]) -> str:
    """The kind of search, with the measured recall of an approximate index."""
    indexes = info.get("indexes") or []
    if not indexes or info["search"] in ("exact", "flat"):
        return str(info["search"])
    return f"{info['search']}{recall_text(indexes[-1])}"


def recall_text(index: dict[str, Any]) -> str:
    """', recall@10 0.953 measured for 0.95' of an index."""
    wanted = index.get("recall") or 0.95
    entries = [entry for entry in index.get("tuned") or [] if entry.get("hits") == 10 and entry.get("target", 0) >= wanted and entry.get("recall")]
    on = index.get("tuned_on") or "held-out rows"
    return f", recall@10 {entries[0]['recall']:.3f} measured for {entries[0]['target']:g} on {on}" if entries else ""


def _compacted(found: dict[str, Any] | None) -> str | None:
    if found is None or "dropped" not in found:
        return None if found is None else "done"
    sizes = f"{bytes_text(found['bytes_before'])} -> {bytes_text(found['bytes'])}"
    return f"{found['dropped']:,} dead rows dropped, {found['segments_before']} -> {found['segments']} segments, {sizes}"
