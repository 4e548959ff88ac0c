"""The words of the report in both languages."""

from __future__ import annotations

from typing import Final

from twinvec.evaluation.report.svg import Words

W: Final[dict[str, Words]] = {
    "title": ("Comparison of models", "模型对比"),
    "take": ("What to take", "推荐"),
    "table": ("Quality and cost", "质量与成本"),
    "table_note": (
        "Points of 100, with {level} intervals from {draws} bootstrap draws of the rows. Tap a column's head to sort.",
        "分数为百分制；区间为按行抽样 {draws} 次的 {level} 自助法区间。点击表头可排序。",
    ),
    "number": ("no.", "编号"),
    "model": ("model", "模型"),
    "engine": ("engine", "引擎"),
    "precision": ("precision", "精度"),
    "dimensions": ("dims", "维数"),
    "quality": ("mean", "平均"),
    "interval": ("interval", "区间"),
    "rate": ("texts/s", "条/秒"),
    "latency": ("one text, ms (median)", "单条延迟（毫秒，中位数）"),
    "memory": ("peak memory", "内存峰值"),
    "disk": ("on disk", "磁盘占用"),
    "truncated": ("truncated", "截断比例"),
    "unknown": ("unknown tokens", "未知词元"),
    "crowd": ("cosine of unrelated texts", "无关文本余弦"),
    "trade": ("best trade", "最优折中"),
    "yes": ("yes", "是"),
    "pareto": ("Quality against speed", "质量与速度"),
    "pareto_note": (
        "Numbers are those of the table; bars are intervals. No other model is both better and faster than one on the dashed line.",
        "编号与表格一致，竖线为区间。虚线上的模型，没有别的模型同时更好且更快。",
    ),
    "no_rate": ("Without a rate, so not in the picture: {names}", "没有速度数据，未画出：{names}"),
    "differences": ("Differences", "差异"),
    "differences_note": (
        "On the same rows and the same draws; p after Holm's correction over all pairs. A difference that may be chance is not equality.",
        "在同样的行与同样的抽样上比较；p 值经 Holm 校正。可能出于偶然的差异不等于没有差异。",
    ),
    "all_pairs": ("All pairs", "全部两两差异"),
    "better": ("better", "较好"),
    "than": ("than", "相比"),
    "by": ("by", "差值"),
    "p": ("p (Holm)", "p（Holm 校正）"),
    "verdict": ("verdict", "结论"),
    "sure": ("beyond chance", "非偶然"),
    "unsure": ("may be chance", "可能偶然"),
    "models": ("Each model closer", "逐个模型"),
    "models_note": ("On {file}.", "数据：{file}。"),
    "histogram": ("Cosines", "余弦分布"),
    "reliability": ("What a cosine means (on rows not learnt from)", "余弦的含义（未参与拟合的行）"),
    "reliability_note": ("{method}; calibration error {error}, Brier score {brier}", "{method}；校准误差 {error}，Brier 分数 {brier}"),
    "heat": ("Some texts with each other", "若干文本两两相似度"),
    "map": ("Map of texts", "文本分布图"),
    "worst": ("The {count} worst errors", "最严重的 {count} 个错误"),
    "row": ("row", "行"),
    "query": ("query", "查询"),
    "texts": ("texts", "文本"),
    "said": ("figures", "数值"),
    "none_wrong": ("No row is wrong.", "没有错误的行。"),
    "geometry": ("How the vectors lie", "向量如何分布"),
    "geometry_note": (
        "A narrow cone shows as cosines of random texts far above 0, and as a first direction that holds most of everything.",
        "若随机文本的余弦远高于 0、且第一方向占去大部分份额，说明向量挤在一个狭窄的锥形里。",
    ),
    "notes": ("Notes", "提示"),
    "how": ("How this was made", "生成方式"),
    "command": ("command", "命令"),
    "data": ("data", "数据"),
    "machine": ("machine", "机器"),
    "made": ("Made by twinvec {version}", "由 twinvec {version} 生成"),
    "switch": ("中文", "English"),
    "rows": ("rows", "行"),
    "left_out": ("Left out", "未能测量"),
}


def fill(words: Words, **values: object) -> Words:
    """Both languages with the same values put in; braces in the values are left alone."""
    en, zh = (words, words) if isinstance(words, str) else words
    return en.format(**values), zh.format(**values)
