"""One self-contained HTML page: texts, tables and charts that work without a network, on a phone and on paper."""

from __future__ import annotations

import base64
import html
import json
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from twinvec import __version__, files
from twinvec.errors import DataError, choose
from twinvec.text import without_surrogates

LANGUAGES: Final = {
    "en": {"lang": "en", "figure": "Figure", "yes": "yes", "no": "no", "made": "Made by twinvec"},
    "zh": {"lang": "zh-Hans", "figure": "图", "yes": "是", "no": "否", "made": "由 twinvec 生成,版本"},
}

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_STYLE: Final = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0 auto;max-width:46rem;padding:1rem;font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","PingFang SC","Microsoft YaHei",
"Noto Sans CJK SC",sans-serif;color:#1c1c1c;background:#fff;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.25;margin:.5rem 0 1rem}
h2{font-size:1.2rem;margin:2rem 0 .5rem;border-bottom:1px solid #ddd;padding-bottom:.2rem}
p{margin:.6rem 0;white-space:pre-line}
pre{background:#f5f5f5;padding:.6rem .8rem;overflow-x:auto;font-size:.85rem;white-space:pre-wrap}
figure{margin:1.2rem 0}
figcaption{color:#555;font-size:.9rem;margin-top:.3rem}
.wide{overflow-x:auto;margin:.8rem 0 1.2rem}
table{border-collapse:collapse;font-size:.9rem;min-width:50%}
th,td{padding:.3rem .7rem .3rem 0;text-align:left;vertical-align:top;border-bottom:1px solid #e5e5e5;overflow-wrap:break-word;min-width:3rem}
th{font-weight:600}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
caption{caption-side:bottom;text-align:left;color:#555;font-size:.9rem;padding-top:.3rem}
.live{width:100%}
.live svg,.still{max-width:100%;height:auto}
#vg-tooltip-element{max-width:min(24rem,90vw);overflow-wrap:anywhere}
#vg-tooltip-element table tr td.value{max-width:18rem;white-space:normal}
html.js .still{display:none}
html:not(.js) .live{display:none}
footer{margin-top:2.5rem;color:#777;font-size:.8rem}
@media print{
body{max-width:none;padding:0;font-size:11pt}
html.js .still{display:inline}
.live{display:none!important}
.wide{overflow:visible}
figure,tr{break-inside:avoid}
h2{break-after:avoid}
}
"""

# A chart of several panels cannot be fitted by Vega-Lite itself: its panels get the width here, less their axis.
_SCRIPT: Final = """
(function(){
var root=document.documentElement,nodes=[].slice.call(document.querySelectorAll(".live")),last=0;
if(!window.vegaEmbed)return;
root.classList.add("js");
function fit(spec,width){
 if(spec.vconcat)spec.vconcat.forEach(function(s){s.width=Math.max(140,width-80)});
 else{spec.width=width;spec.autosize={type:"fit-x",contains:"padding"}}
 if(width<520){spec.config=spec.config||{};spec.config.axisYBand={labelLimit:120};
  spec.config.axisX=Object.assign({},spec.config.axisX,{labelOverlap:"greedy"})}
 return spec}
function draw(){
 var width=nodes.length?Math.floor(nodes[0].getBoundingClientRect().width):0;
 if(!width||width===last)return;
 last=width;
 nodes.forEach(function(node){
  var spec=fit(JSON.parse(document.getElementById(node.dataset.spec).textContent),width);
  window.vegaEmbed(node,spec,{renderer:"svg",actions:false}).catch(function(){
   node.style.display="none";node.nextElementSibling.style.display="inline"})})}
var timer;window.addEventListener("resize",function(){clearTimeout(timer);timer=setTimeout(draw,150)});
draw()})();
"""


class Page:
    """A page that grows from the top: `page.text(...)`, `.heading`, `.code`, `.table`, `.chart`, then `.html()` or `.save(path)`.

    Every text is escaped. Each chart is drawn live (with tooltips) by a script inside the page, and stands beside it as a still SVG for
    paper and for readers without scripts. The script (Vega, about 0.9 MB) is put in once, and only when there is a chart.
    """

    def __init__(self, title: str, language: str = "en") -> None:
        """`language` is "en" or "zh": the page's declared language and the few words it adds itself. Any other: UsageError."""
        choose("language", language, LANGUAGES)
        self.title, self.language = title, language
        self._words = LANGUAGES[language]
        self._parts: list[str] = []
        self._specs: list[dict[str, Any]] = []

    def heading(self, text: str) -> Page:
        self._parts.append(f"<h2>{_escape(text)}</h2>")
        return self

    def text(self, text: str) -> Page:
        """One paragraph for each block between empty lines; single line breaks are kept."""
        self._parts += [f"<p>{_escape(block.strip())}</p>" for block in re.split(r"\n\s*\n", text) if block.strip()]
        return self

    def code(self, text: str) -> Page:
        """A command or a log, in fixed-width type."""
        self._parts.append(f"<pre>{_escape(text)}</pre>")
        return self

    def table(self, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]], caption: str = "") -> Page:
        """Rows of {column: value}, columns in order of first appearance; or one mapping, shown as names and values.

        Numbers are aligned right, floats at four decimals; None is a dash; NaN is shown as such. No rows: DataError.
        """
        pairs = isinstance(rows, Mapping)
        listed: list[Mapping[str, Any]] = [{"k": key, "v": value} for key, value in rows.items()] if isinstance(rows, Mapping) else list(rows)
        if not listed:
            raise DataError("page: a table needs at least one row")
        columns = list(dict.fromkeys(column for row in listed for column in row))
        right = {column for column in columns if all(_is_number(row.get(column)) or row.get(column) is None for row in listed)}
        head = "" if pairs else "<thead><tr>" + "".join(self._cell("th", column, column in right) for column in columns) + "</tr></thead>"
        body = "".join("<tr>" + "".join(self._cell("td", row.get(column, ""), column in right) for column in columns) + "</tr>" for row in listed)
        below = f"<caption>{_escape(caption)}</caption>" if caption else ""
        self._parts.append(f'<div class="wide"><table>{below}{head}<tbody>{body}</tbody></table></div>')
        return self

    def chart(self, spec: Mapping[str, Any], caption: str = "") -> Page:
        """A Vega-Lite spec with its data inside (see `charts`). A spec that Vega-Lite refuses, or that holds NaN: DataError."""
        spec = _clean(spec)
        number = len(self._specs) + 1
        still = base64.b64encode(_still(spec).encode("utf-8")).decode("ascii")
        label = f"{self._words['figure']} {number}" + (f". {caption}" if caption else "")
        name = f"spec{number}"
        # An <img>, not inline SVG: ids inside two inlined drawings would clash, and an image runs no script.
        self._parts.append(
            f'<figure><div class="live" data-spec="{name}" role="img" aria-label="{_escape(label)}"></div>'
            f'<img class="still" alt="{_escape(label)}" src="data:image/svg+xml;base64,{still}">'
            f"<figcaption>{_escape(label)}</figcaption>"
            f'<script type="application/json" id="{name}">{_json(spec)}</script></figure>'
        )
        self._specs.append(dict(spec))
        return self

    def html(self) -> str:
        """The whole page. The same parts give the same bytes."""
        scripts = f"<script>{_bundle(_version(self._specs[0]))}</script>\n<script>{_SCRIPT}</script>\n" if self._specs else ""
        title = _escape(self.title)
        return (
            f'<!doctype html>\n<html lang="{self._words["lang"]}">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width,initial-scale=1">\n<meta name="generator" content="twinvec {__version__}">\n'
            f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n'
            + "\n".join(self._parts)
            + f"\n<footer>{_escape(self._words['made'])} {__version__}</footer>\n{scripts}</body>\n</html>\n"
        )

    def save(self, path: str | Path) -> Path:
        """Write the page whole or not at all; returns its path."""
        path = Path(path)
        files.write_text(path, self.html())
        return path

    def _cell(self, tag: str, value: Any, right: bool) -> str:
        return f"<{tag}{' class=n' if right else ''}>{_escape(self._shown(value))}</{tag}>"

    def _shown(self, value: Any) -> str:
        if value is None:
            return "–"
        if isinstance(value, bool):
            return self._words["yes" if value else "no"]
        if isinstance(value, str):
            return value
        if _is_number(value):
            return format_number(value)
        if isinstance(value, (dict, list, tuple)):
            return json.dumps(value, ensure_ascii=False, default=str)
        return str(value)


def format_number(value: float) -> str:
    """Whole numbers as they are; others at four decimals, at one from 1,000 on, and as 2.00e-05 below a thousandth."""
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    if isinstance(value, numbers.Integral):  # numpy's whole numbers too
        return str(int(value))
    if number and abs(number) < 1e-3:
        return f"{number:.2e}"
    return f"{number:.1f}" if abs(number) >= 1000 else f"{number:.4f}"


def _is_number(value: Any) -> bool:
    return not isinstance(value, (bool, str)) and hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0


def _escape(text: Any) -> str:
    return html.escape(_clean(str(text)), quote=True)


def _clean(part: Any) -> Any:
    """Every string in `part`, at any depth, without the characters that XML, HTML or UTF-8 cannot hold; each becomes U+FFFD.

    vl-convert 1.9 does not refuse a label with such a character: it aborts the whole process.
    """
    if isinstance(part, str):
        return _NOT_XML.sub("\ufffd", without_surrogates(part))
    if isinstance(part, Mapping):
        return {_clean(key): _clean(value) for key, value in part.items()}
    return [_clean(value) for value in part] if isinstance(part, (list, tuple)) else part


def _json(spec: Mapping[str, Any]) -> str:
    """JSON that cannot end its script element, whatever the texts in it say."""
    return _dump(spec).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _dump(spec: Mapping[str, Any]) -> str:
    try:
        return json.dumps(spec, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError) as err:
        raise DataError(f"page: the chart holds a value that JSON cannot ({err}); put None or a plain number in its place") from err


def _still(spec: Mapping[str, Any]) -> str:
    import vl_convert

    try:
        return str(vl_convert.vegalite_to_svg(_dump(spec), vl_version=_version(spec)))
    except ValueError as err:
        raise DataError(f"page: Vega-Lite cannot draw this chart: {str(err).strip().splitlines()[0]}") from err


def _version(spec: Mapping[str, Any]) -> str | None:
    """The spec's Vega-Lite version, as vl-convert names it; None (the newest) when it names none that is on board."""
    import vl_convert

    found = re.search(r"/v(\d+\.\d+)", str(spec.get("$schema", "")))
    return found.group(1) if found and found.group(1) in vl_convert.get_vegalite_versions() else None


@lru_cache(maxsize=2)
def _bundle(version: str | None) -> str:
    import vl_convert

    bundle: Any = vl_convert.javascript_bundle  # its stub asks for a snippet, the function does not
    return str(bundle(vl_version=version)).replace("</script", "<\\/script").replace("<!--", "<\\!--")
