"""Write docs/configuration.md from the sections; `--check` fails if it is out of date."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pitstop.config.keys import Key, every_key, section_classes
from pitstop.config.problems import shorten
from pitstop.config.quantities import format_bytes
from pitstop.config.workloads.kinds import KINDS

TARGET = Path(__file__).parents[1] / "docs" / "configuration.md"

HEAD = """# Configuration

Generated from the sections in `src/pitstop/config` by `scripts/make_config_docs.py`; edit those.

A run is one YAML file. `base:` names a file, or a list of files, relative to it; the file is laid
over its bases group by group. `pitstop train CONFIG key.sub=value ...` changes settings for one
run. `pitstop config check CONFIG` lists every mistake at once, `pitstop config show CONFIG` prints
everything that holds, `pitstop config import OLD` converts the guides' files.

```yaml
base: deblur.yaml
model:
  kind: vrt_spike
train:
  steps: 8880
  batch_size: 2
  precision: bf16
```

- A key nobody knows is refused, with a suggestion. So is a setting that would do nothing because of
  another one, such as a loss scale under bf16, with the reason.
- Values take their meaning from the setting: `1e-4` is a number, `off` is a word where words are
  expected, `yes`, `no`, `on`, `off`, `true` and `false` are switches where a switch is expected.
- Sizes in memory carry their unit: `20GiB` is 20 x 1024^3 bytes, `20GB` is 20 x 1000^3.
- `null` stands for "not set". An empty group says nothing.
- `model.kind` decides which `data`, `model` and `loss` settings apply.
"""

WORKLOADS = {
    "vrt_spike": ("Deblurring", "`model.kind` is `vrt` or `vrt_spike`."),
    "lss_swin_mono": ("Bird's-eye view, one camera", "`model.kind` is `lss_swin_mono`."),
    "lss_swin_surround": ("Bird's-eye view, six cameras", "`model.kind` is `lss_swin_surround`."),
    "clip_reid": ("Re-identification", "`model.kind` is `clip_reid`."),
}
OWN = ("data", "model", "loss")


def main() -> int:
    text = render()
    if "--check" in sys.argv[1:]:
        if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET.name} is out of date; run {Path(__file__).name}", file=sys.stderr)
        return 1
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


def render() -> str:
    common = every_key(section_classes(None))
    parts = [HEAD, "\n## Common settings\n"]
    parts += _sections(key for key in common.values() if key.name.split(".")[0] not in OWN)
    for kind, (title, intro) in WORKLOADS.items():
        keys = every_key(section_classes(KINDS[kind]))
        parts.append(f"\n## {title}\n\n{intro}\n")
        parts += _sections(key for key in keys.values() if key.name.split(".")[0] in OWN)
    return "".join(parts)


def _sections(keys: Iterable[Key]) -> Iterator[str]:
    for key in keys:
        if key.section is None:
            cells = (f"`{key.name}`", key.expectation, _default(key), key.description)
            yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
        elif "." not in key.name:
            summary = (key.section.__doc__ or "").strip().splitlines()[0]
            yield f"\n### {key.name}\n\n{summary}\n\n"
            yield "| setting | value | default | meaning |\n|---|---|---|---|\n"


def _default(key: Key) -> str:
    if key.field.is_required():
        return "none; must be set"
    if key.default is None:
        return "`null`"
    if key.expectation.startswith("a size") and isinstance(key.default, int):
        return f"`{format_bytes(key.default)}`"
    if key.default == () and key.expectation.startswith("a mapping"):
        return "`{}`"
    value = str(key.default).lower() if isinstance(key.default, bool) else key.default
    return f"`{shorten(value)}`"


if __name__ == "__main__":
    sys.exit(main())
