"""A run's verdict with what to change, in the language of the findings' pages.

Numbers and quoted lines stay as they were measured; what is said around them, names of findings and
what to change are in the language asked for, and evidence as far as the table of messages goes.
"""
# ruff: noqa: RUF001 - Chinese has commas, colons and brackets of its own

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from pitstop.records.units import share_text, speedup_text
from pitstop.records.verdict import Bound, Finding, Outcome, Severity, Verdict
from pitstop.report.explain import Explanation, explain, require_language
from pitstop.report.language.translate import Translator, translator
from pitstop.report.printable import literal

_MOST_SHARES: Final = 6
_SMALL: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    outcomes: Mapping[Outcome, str]
    severities: Mapping[Severity, str]
    healthy: str
    up_to: str
    no_limit: str
    together: str
    shares: str
    evidence: str
    doubts: str
    change: str
    more: str
    comma: str
    colon: str


_WORDS: Final[Mapping[str, _Words]] = {
    "en": _Words(
        outcomes={
            "bottleneck": "bottleneck",
            "healthy": "healthy",
            "not enough evidence": "not enough evidence",
        },
        severities={"info": "info", "warning": "warning", "critical": "critical"},
        healthy="no certain bottleneck in {steps} measured steps",
        up_to="up to {times} faster by fixing it",
        no_limit="no bound on the gain: it is the whole step",
        together="all fixed: up to {times} faster",
        shares="of the wall clock",
        evidence="evidence",
        doubts="in doubt",
        change="what to change",
        more="more",
        comma=", ",
        colon=": ",
    ),
    "zh": _Words(
        outcomes={"bottleneck": "瓶颈", "healthy": "正常", "not enough evidence": "证据不足"},
        severities={"info": "提示", "warning": "警告", "critical": "严重"},
        healthy="在测量的 {steps} 步里没有确定的瓶颈",
        up_to="修好后最快可达原来的 {times}",
        no_limit="收益没有上限：它就是整个一步",
        together="全部修好：最快可达原来的 {times}",
        shares="占实际时间",
        evidence="依据",
        doubts="存疑",
        change="怎么改",
        more="详情",
        comma="，",
        colon="：",
    ),
}


def explained_verdict(verdict: Verdict, language: str) -> RenderableType:
    """Say what holds a run back and what to change.

    Raises:
        PitstopError: There is no such language.
    """
    require_language(language)
    pages = {finding.code: explain(finding.code, language) for finding in verdict.findings}
    return Group(*_lines(verdict, pages, _WORDS[language], language))


def _lines(
    verdict: Verdict, pages: Mapping[str, Explanation], words: _Words, language: str
) -> Iterator[Text]:
    outcome = words.outcomes[verdict.outcome]
    yield Text.assemble((f"{outcome}{words.colon}", "bold"), _headline(verdict, pages, words))
    parts = sorted(verdict.shares.items(), key=lambda item: -item[1])
    named = [f"{literal(name)} {share_text(share)}" for name, share in parts if share >= _SMALL]
    if named:
        yield Text(f"{words.shares}{words.colon}{words.comma.join(named[:_MOST_SHARES])}")
    for finding in verdict.findings:
        yield Text("")
        said = finding if (say := translator(language)) is None else _in_language(finding, say)
        yield from _finding(said, pages[finding.code], words)
    bound = verdict.combined_bound
    if bound is not None and bound.speedup is not None and len(verdict.findings) > 1:
        yield Text("\n" + words.together.format(times=speedup_text(bound.speedup)))
    if verdict.findings:
        option = "" if language == "en" else f" --lang {language}"
        yield Text(f"\n{words.more}{words.colon}pitstop explain {verdict.findings[0].code}{option}")


def _headline(verdict: Verdict, pages: Mapping[str, Explanation], words: _Words) -> str:
    if verdict.outcome == "healthy":
        return words.healthy.format(steps=f"{verdict.steps:,}")
    if verdict.outcome == "not enough evidence" or not verdict.findings:
        return literal(verdict.message)
    first = verdict.findings[0]
    said = pages[first.code].summary
    return said if first.bound is None else f"{said}{words.comma}{_gain(first.bound, words)}"


def _gain(bound: Bound, words: _Words) -> str:
    if bound.speedup is None:
        return words.no_limit
    return words.up_to.format(times=speedup_text(bound.speedup))


def _finding(finding: Finding, page: Explanation, words: _Words) -> Iterator[Text]:
    colour = {"info": "cyan", "warning": "yellow", "critical": "red"}[finding.severity]
    severity = words.severities[finding.severity]
    yield Text.assemble((finding.code, colour), f" {page.summary} ({severity})")
    if finding.bound is not None:
        yield Text(f"  {_gain(finding.bound, words)}")
    for heading, lines in (
        (words.evidence, finding.evidence),
        (words.doubts, finding.doubts),
        (words.change, _what_to_change(page)),
    ):
        if lines:
            yield Text(f"  {heading}{words.colon}")
            yield from (Text(f"    {literal(line)}") for line in lines)


def _in_language(finding: Finding, say: Translator) -> Finding:
    return replace(
        finding, evidence=tuple(map(say, finding.evidence)), doubts=tuple(map(say, finding.doubts))
    )


def _what_to_change(page: Explanation) -> tuple[str, ...]:
    """The page's first section, which is what to change."""
    _, _, rest = page.text.partition("\n")
    return tuple(_until_heading(rest.splitlines()))


def _until_heading(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("## "):
            return
        if line.strip() and not line.startswith("```"):
            yield line
