"""A recipe of several stages: each in its own folder, each from the best of the one before, resumable in the middle of any."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from twinvec.errors import TrainingError, UsageError
from twinvec.evaluation.page import Page
from twinvec.files import atomic_folder, write_json
from twinvec.progress import note
from twinvec.runs.folder import prepare_folder
from twinvec.runs.report import WORDS, add_tests
from twinvec.training.distributed import World
from twinvec.training.recipe import Recipe
from twinvec.training.state import identity


def train_stages(recipe: Recipe, everyone: World, *, progress: bool, language: str) -> dict[str, Any]:
    """Run all stages; a stage that was finished by an earlier, killed run of the same recipe is not run again."""
    from twinvec.runs.train import train_stage

    start = time.monotonic()
    folder = Path(recipe.output)
    stages = recipe.stages()
    if recipe.dry_run:
        return _dry(stages, everyone, progress, language)
    record = {"format": 1, "recipe": recipe.model_dump(mode="json"), "stages": [stage.output for stage in stages]}
    if everyone.first:
        prepare_folder(folder, recipe)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "run.json", record)
    everyone.barrier()
    results: list[dict[str, Any]] = []
    for number, stage in enumerate(stages, 1):
        done = everyone.from_first(_finished(stage, stages[: number - 1]) if everyone.first and recipe.resume else None)
        if progress and everyone.first:
            note(f"stage {number} of {len(stages)}: {stage.name}{' (finished before)' if done else ''}")
        results.append(done or train_stage(stage, everyone, progress=progress, language=language))
    last = results[-1]
    result: dict[str, Any] = {}
    if everyone.first:
        with atomic_folder(folder / "best", replace=True) as place:
            shutil.copytree(last["best"], place, dirs_exist_ok=True)
        notes = [f"stage {stage.name}: {text}" for stage, found in zip(stages, results, strict=True) for text in found["notes"]]
        first = {test["file"]: test["before"] for test in reversed([test for found in results for test in found["tests"]])}
        keys = ("best_step", "best_metric", "baseline_metric", "metric", "steps", "stopped")
        result = {
            **{key: last[key] for key in keys},
            "output": str(folder),
            "best": str(folder / "best"),
            "report": str(folder / "report.html"),
            "tests": [{**test, "before": first[test["file"]]} for test in last["tests"]],
            "stages": [{"name": stage.name, **found} for stage, found in zip(stages, results, strict=True)],
            "notes": notes,
            "seconds": round(time.monotonic() - start, 1),
        }
        write_json(folder / "run.json", {**record, "result": result})
        _report(folder, recipe, stages, result, language)
    found: dict[str, Any] = everyone.from_first(result)
    return found


def _dry(stages: list[Recipe], everyone: World, progress: bool, language: str) -> dict[str, Any]:
    """Each stage measured; one that starts from a model that does not exist yet is measured on that which the stages before it start from."""
    from twinvec.runs.train import train_stage

    found: list[dict[str, Any]] = []
    base: dict[str, Any] = {}
    for number, stage in enumerate(stages):
        if number and stage.model == _best_of(stages[number - 1]):
            base["prompts"] = {**base["prompts"], **stage.prompts}
        else:
            base = {key: getattr(stage, key) for key in ("model", "new_model", "pooling", "prompts")}
        settings = stage.changed(**{**base, "pooling": stage.pooling or base["pooling"]}, dry_run=True)
        if progress and everyone.first:
            note(f"stage {stage.name}")
        found.append({"name": stage.name, **train_stage(settings, everyone, progress=progress, language=language)})
    total = sum(item["seconds"] for item in found)
    lines = [f"stage {item['name']}: {line}" for item in found for line in item["lines"]]
    return {"dry_run": True, "stages": found, "seconds": total, "notes": [], "lines": lines, "output": str(Path(stages[0].output).parent)}


def _finished(stage: Recipe, earlier: list[Recipe]) -> dict[str, Any] | None:
    """The result of a stage that came to its end, or None. TrainingError when it was run by other settings, or from another model."""
    path = Path(stage.output) / "run.json"
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        then = Recipe.of(**record["recipe"])
    except (json.JSONDecodeError, KeyError, UsageError) as err:
        raise TrainingError(f"{path}: cannot be read ({err}); remove the folder to run this stage again") from err
    if "result" not in record:
        return None
    before, now = identity(then), identity(stage)
    if before != now:
        changed = sorted(key for key in now if before.get(key) != now[key])
        raise TrainingError(
            f"{stage.output} was finished by another recipe (different: {', '.join(changed)}); choose another output, or overwrite = true"
        )
    if earlier and stage.model == _best_of(earlier[-1]):
        came = json.loads((Path(earlier[-1].output) / "run.json").read_text(encoding="utf-8")).get("best_fingerprint")
        if record.get("base_model", {}).get("fingerprint") != came:
            raise TrainingError(f"{stage.output} was trained from another model than {stage.model} is now; remove {stage.output} to run it again")
    result: dict[str, Any] = record["result"]
    return result


def _best_of(stage: Recipe) -> str:
    return str(Path(stage.output) / "best")


def _report(folder: Path, recipe: Recipe, stages: list[Recipe], result: dict[str, Any], language: str) -> None:
    """report.html over all stages; each stage has its own, with curves."""
    word = WORDS[language]
    page = Page(f"{word['title']}: {folder.name}", language)
    rows = []
    for number, found in enumerate(result["stages"], 1):
        row = {"stage": f"{number} {found['name']}", "steps": found["steps"], "seconds": found["seconds"], word["metric"]: found["metric"]}
        row |= {word["before"]: found["baseline_metric"], word["after"]: found["best_metric"], "report": found["report"]}
        rows.append(row)
    page.heading(word["result"]).table(rows)
    for text in result["notes"]:
        page.text(f"{word['notes']}: {text}")
    add_tests(page, result["tests"], word)
    for found in result["stages"]:
        if found["tests"]:
            page.heading(f"{word['tests']}: {found['name']}")
            add_tests(page, found["tests"], word)
    page.heading(word["recipe"]).code(json.dumps(recipe.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False, indent=2))
    page.save(folder / "report.html")
