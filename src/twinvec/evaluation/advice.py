"""From a table of models to one sentence: which to take, why, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

SURE: Final = 0.05  # p after Holm's correction below which a difference counts as beyond chance
FASTER: Final = 1.25  # a rate below so many times another's is not called faster: rates on a busy machine move by as much
TOLERATED: Final = 0.02  # most that the faster of two may lose, by the far end of the interval; beyond it the rows are too few to call them alike
MUCH_FASTER: Final = 1.5  # worth a clause of its own, though quality is lost

Row = dict[str, Any]


def best_trades(points: Sequence[tuple[float | None, float | None]]) -> list[int]:
    """The points (quality, rate) that no other beats in one without losing in the other (the Pareto front), fastest first; unknowns are no part."""
    known = [(quality, rate, i) for i, (quality, rate) in enumerate(points) if quality is not None and rate is not None]
    return sorted(
        (
            i
            for quality, rate, i in known
            if not any(q >= quality and r >= rate and (q > quality or r > rate) for q, r, _ in known)
        ),
        key=lambda i: -(points[i][1] or 0.0),
    )  # fmt: skip


def advise(rows: Sequence[Row], differences: Sequence[Row], files: Sequence[Row]) -> dict[str, Any]:
    """{"choice": number of the row, "sentence", "sentence_zh"}.

    The best model by quality is taken, unless a faster one cannot be told from it (p after Holm's correction of 0.05 or more) and loses no more
    than two points at the far end of the interval: with few rows nothing can be told apart, which does not make a model good.
    """
    ranked = sorted((row for row in rows if row["quality"] is not None), key=lambda row: -row["quality"])
    if not ranked:
        text = "No model has a defined score on this data, so nothing can be recommended."
        return {"choice": None, "sentence": text, "sentence_zh": "在这份数据上没有任何模型得到有效分数，无法给出推荐。"}
    best = ranked[0]
    told = {(row["first"], row["second"]): row for row in differences}
    apart = {row["number"]: told.get((best["number"], row["number"])) or told.get((row["number"], best["number"])) for row in ranked[1:]}
    count = sum(file["rows"] for file in files)
    equals = [row for row in ranked[1:] if (found := apart[row["number"]]) is not None and found["p_holm"] >= SURE]
    alike = [row for row in equals if (apart[row["number"]] or {})["high"] <= TOLERATED]
    faster = [row for row in alike if (_times(row, best) or 0) >= FASTER]
    if len(ranked) == 1:
        en = f"{best['model']} scores {_points(best['quality'])}{_band(best)} on {count:,} rows; there is no other model to choose from."
        zh = f"{best['model']} 在 {count:,} 行数据上得分 {_points(best['quality'])}{_band(best)}；没有其他模型可供选择。"
        return {"choice": best["number"], "sentence": en, "sentence_zh": zh}
    if faster:
        pick = max(faster, key=lambda row: row["texts_per_second"])
        away = apart[pick["number"]] or {}
        times = _times(pick, best) or 0.0
        en = (
            f"Take {pick['model']}: it is {_fold(times)} faster than {best['model']}, whose lead of {_plus_minus(away)} may be chance "
            f"(p {_p(away)} on {count:,} rows); the doubt: {pick['model']} may still be worse by up to {_points(max(away['high'], 0.0))}."
        )
        zh = (
            f"建议选用 {pick['model']}：它比 {best['model']} 快 {_fold(times, 'zh')}，而后者领先的 {_plus_minus(away)} 分可能只是偶然"
            f"（{count:,} 行，p {_p(away)}）；存疑之处：{pick['model']} 仍可能差 {_points(max(away['high'], 0.0))} 分之多。"
        )
        return {"choice": pick["number"], "sentence": en, "sentence_zh": zh}
    return {"choice": best["number"], **_for_the_best(best, ranked, apart, equals, count)}


def _for_the_best(best: Row, ranked: Sequence[Row], apart: dict[int, Row | None], equals: Sequence[Row], count: int) -> dict[str, str]:
    second = ranked[1]
    away = apart[second["number"]]
    if away is None:
        return {
            "sentence": f"Take {best['model']}, with the highest score; how sure that is could not be computed.",
            "sentence_zh": f"建议选用得分最高的 {best['model']}；其可信程度无法计算。",
        }
    if not away["value"] and away["low"] == away["high"]:
        en = f"Take {best['model']} or {second['model']}: they score the same in every draw of the {count:,} rows"
        zh = f"{best['model']} 与 {second['model']} 任选其一：在 {count:,} 行的每次抽样中得分都相同"
    elif second not in equals:
        en = f"Take {best['model']}: it is better than {second['model']} by {_plus_minus(away)} (p {_p(away)} on {count:,} rows)"
        zh = f"建议选用 {best['model']}：它比 {second['model']} 高 {_plus_minus(away)} 分（{count:,} 行，p {_p(away)}）"
    else:
        en = f"Take {best['model']} for its score, with a doubt: its lead over {second['model']} of {_plus_minus(away)} may be chance "
        en += f"(p {_p(away)} on {count:,} rows)"
        zh = f"按得分建议选用 {best['model']}，但存疑：它对 {second['model']} 领先的 {_plus_minus(away)} 分可能只是偶然（{count:,} 行，p {_p(away)}）"
    quick = max((row for row in ranked[1:] if row["texts_per_second"]), key=lambda row: row["texts_per_second"], default=None)
    times = _times(quick, best) if quick is not None else None
    if quick is not None and times is not None and times >= MUCH_FASTER:
        lost = apart[quick["number"]]
        known = f" and loses {_plus_minus(lost)}" if lost is not None and quick is not second else ""
        en += f"; {quick['model']} is {_fold(times)} faster{known}, should speed count more"
        known = f"，损失 {_plus_minus(lost)} 分" if lost is not None and quick is not second else ""
        zh += f"；若更看重速度，{quick['model']} 快 {_fold(times, 'zh')}{known}"
    small = min(equals, key=lambda row: row["dimensions"], default=None)
    if small is not None and small["dimensions"] * 2 <= best["dimensions"]:
        less = best["dimensions"] / small["dimensions"]
        lost = apart[small["number"]]
        en += f"; vectors of {small['model']} take {_fold(less)} less room" + (f", for {_plus_minus(lost)} that may be chance" if lost else "")
        zh += f"；{small['model']} 的向量只占 {1 / less:.0%} 的空间" + (f"，相差 {_plus_minus(lost)} 分，可能只是偶然" if lost else "")
    doubt = "" if second in equals else _doubt(count)
    return {
        "sentence": en + (f"; the doubt: {doubt}" if doubt else "") + ".",
        "sentence_zh": zh + (f"；存疑之处：{_doubt_zh(count)}" if doubt else "") + "。",
    }


def _doubt(count: int) -> str:
    return f"with {count:,} rows only, a few odd ones weigh much" if count < 200 else "it holds for data like this, and for no other"


def _doubt_zh(count: int) -> str:
    return f"只有 {count:,} 行，个别数据影响很大" if count < 200 else "结论只适用于与此类似的数据"


def _times(row: Row, other: Row) -> float | None:
    a, b = row["texts_per_second"], other["texts_per_second"]
    return a / b if a and b else None


def _points(value: float) -> str:
    return f"{value * 100:.1f}"


def _band(row: Row) -> str:
    return f" ({_points(row['low'])} to {_points(row['high'])})" if row["low"] is not None else ""


def _plus_minus(away: Row) -> str:
    """'1.2 ± 0.5', in points of 100: the difference and half the width of its interval."""
    value, half = abs(away["value"]) * 100, (away["high"] - away["low"]) * 50
    places = 1 if value >= 0.1 or half >= 0.1 else 2
    return f"{value:.{places}f} ± {half:.{places}f}"


def _p(away: Row) -> str:
    return "< 0.001" if away["p_holm"] < 0.001 else f"= {away['p_holm']:.2g}"


def _fold(times: float, language: str = "en") -> str:
    number = f"{times:.0f}" if times >= 10 else f"{times:.1f}"
    return f"{number} 倍" if language == "zh" else f"{number}x"
