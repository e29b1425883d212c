"""Masks secrets in what is written down of a command: passwords, keys, tokens.

Done before anything is written, so that no file, page or terminal ever shows one. A secret is known
by the name before it (``--api-key=X``, ``--password X``, ``HF_TOKEN=X``), by its own shape
(``hf_...``, a JWT, a long random string) or by its place (``https://user:password@host``). In doubt
the value is masked: one too few in a record costs less than a password in it. Three things stay:

- One-letter options (``-p X``), since most are no passwords: port, precision, path.
- Hashes after a name that says so (``--revision``, ``--commit``, ``--sha``) and in paths and URLs.
  A bare hash of 32 hexadecimal digits or more cannot be told from an API key, so it is masked.
- Names that only look alike: ``--tokenizer``, ``--max-tokens``, ``--pad-token``, ``--key-frames``,
  ``--author``, ``--password-file``.
"""

import re
from typing import Any, FrozenSet, List, Match, Optional, Sequence

MASK = "***"


def _any_of(words: str) -> FrozenSet[str]:
    return frozenset(words.split())


_SECRET_WORDS = _any_of(
    "password passwords passwd passphrase pwd secret secrets apikey apikeys accesskey secretkey "
    "privatekey authkey credential credentials creds"
)
# Secret where they end a name: `--hf-token`, `--db-auth`.
_SECRET_ENDS = _any_of("token auth pass authtoken accesstoken")
# What stands before "token" and "pass" where these are words of machine learning.
_NO_TOKEN = _any_of(
    "pad padding eos bos mask unk cls class sep special stop start end begin image video audio "
    "text object prompt dist distill distillation register per each next first last forward "
    "backward single one two multi num no disable skip trigger placeholder instance initializer"
)
# What stands before "key" where that is to be kept secret; `--image-key` names a column.
_KEY_BEFORE = _any_of(
    "api access secret private auth account signing encryption master license subscription "
    "storage client session shared service ssh wandb openai anthropic azure aws gcp hf "
    "huggingface comet neptune mlflow clearml kaggle google github gitlab deploy"
)
# A name that ends so does not hold the secret itself.
_NO_VALUE = _any_of(
    "file files path paths dir folder name names env var url uri type length len size count dim "
    "ttl expiry prompt frames frame"
)
_HASH_WORDS = _any_of(
    "commit revision rev sha sha1 sha256 md5 hash digest checksum git ref version fingerprint"
)

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LONG_OPTION = re.compile(r"--?[A-Za-z_][\w.-]+")
# A whole argument: `--key=value`, `KEY=value`, `+logger.key=value`.
_ASSIGNED = re.compile(r"(-{0,2}[+~]{0,2}[A-Za-z_][\w./:-]*)=(.*)", re.DOTALL)
# Inside a longer text: `key=value`, `"key": "value"`, `os.environ['KEY'] = 'value'`, `--key value`.
# Names have an end, so that a long text takes no longer than its length.
_INSIDE = re.compile(
    r"""(?P<name>(?<![\w.-])-{0,2}[A-Za-z_][\w.-]{0,80})(?P<between>["']?\]?\s{0,8}[:=]\s{0,8}|\s+(?!-))"""
)
_VALUE = re.compile(r""""[^"]*"|'[^']*'|[^\s"'&;,(){}\[\]<>|]+""")
_HEADER = re.compile(r"(?i)\b(authorization\s*[:=]\s*(?:\w+\s+)?|bearer\s+)(?!\s)[^\s\"']+")
_USER_INFO = re.compile(r"(?<=://)[^/\s?#\"']*@")
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|sk-(?:[A-Za-z0-9]+[_-])*[A-Za-z0-9]{16,}[\w-]*|(?:sk|pk|rk)_(?:live|test)_\w{10,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{12,}|eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?"
    r"|xox[abeoprs]-[\w-]{10,}|AIza[\w-]{30,}|nvapi-[\w-]{16,}|gsk_\w{20,}|r8_\w{20,}"
    r"|wandb_v\d_\w{16,}|npm_\w{20,}|pypi-[\w-]{20,}|ya29\.[\w-]{10,}"
    r")"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL)
# A string by itself: neither part of a path, a URL or a file name, nor behind an "@" or a ":".
_RANDOM = re.compile(r"(?<![\w/.\\@:~+-])[A-Za-z0-9+_-]{24,}={0,2}(?![\w/.\\:@+-])")
_RUN = re.compile(r"[A-Za-z0-9]{24,}")
_HEX = re.compile(r"[0-9a-f]{32,}|[0-9A-F]{32,}")
_FEWEST_LETTERS = 8
_CHANGES = 1 / 3


def mask_command(arguments: Sequence[str]) -> List[str]:
    """Give a command's arguments with every secret masked."""
    masked: List[str] = []
    option: Optional[str] = None
    for argument in arguments:
        is_value = option is not None and not argument.startswith("--")
        masked.append(_masked_value(option or "", argument) if is_value else _masked(argument))
        option = argument if _LONG_OPTION.fullmatch(argument) else None
    return masked


def mask_text(text: str) -> str:
    """Give a text, such as an error's message, with every secret in it masked."""
    return _mask_named(_mask_shapes(text), is_source=False)


def mask_source(line: str) -> str:
    """Give a line of Python with every secret that is spelled out in it masked."""
    return _mask_named(_mask_shapes(line), is_source=True)


def mask_lines(values: Any) -> Any:
    """Give a reading with every source line in it masked, however deep it lies."""
    if isinstance(values, dict):
        return {
            key: mask_source(value) if key == "text" else mask_lines(value)
            for key, value in values.items()
        }
    return [mask_lines(value) for value in values] if isinstance(values, list) else values


def is_secret_name(name: str) -> bool:
    """Whether what a name stands for is to be kept secret."""
    words = _words(name)
    if not words or name in ("PWD", "OLDPWD") or words[-1] in _NO_VALUE:
        return False
    before = words[-2] if len(words) > 1 else ""
    if words[-1] in _SECRET_ENDS:
        return before not in _NO_TOKEN
    is_key = any(words[i] == "key" and words[i - 1] in _KEY_BEFORE for i in range(1, len(words)))
    return is_key or not _SECRET_WORDS.isdisjoint(words)


def _masked(argument: str) -> str:
    """Mask one argument; of ``--env=API_KEY=X`` every name counts."""
    done = ""
    while True:
        assigned = _ASSIGNED.fullmatch(argument)
        if assigned is None:
            return done + mask_text(argument)
        name, value = assigned.groups()
        done += name + "="
        if is_secret_name(name) or _is_hash_of(name, value):
            return done + _masked_value(name, value)
        argument = value


def _masked_value(name: str, value: str) -> str:
    if is_secret_name(name):
        return MASK if value else value
    return value if _is_hash_of(name, value) else _masked(value)


def _is_hash_of(name: str, value: str) -> bool:
    return bool(_HEX.fullmatch(value)) and not _HASH_WORDS.isdisjoint(_words(name))


def _mask_named(text: str, *, is_source: bool) -> str:
    """Mask what stands behind a secret's name; in Python only what is spelled out."""
    pieces: List[str] = []
    place = 0
    for found in _INSIDE.finditer(text):
        named = found["name"].startswith("-") or found["between"].strip()
        if found.start() < place or not named or not is_secret_name(found["name"]):
            continue
        value = _VALUE.match(text, found.end())
        quote = "" if value is None or value[0][0] not in "\"'" else value[0][0]
        if value is not None and (quote or not is_source):
            pieces += [text[place : value.start()], quote, MASK, quote]
            place = value.end()
    return "".join(pieces) + text[place:]


def _mask_shapes(text: str) -> str:
    """Mask what is secret by its shape or its place, whatever its name."""
    text = _PRIVATE_KEY.sub(MASK, text)
    text = _USER_INFO.sub(MASK + "@", text)
    text = _HEADER.sub(lambda found: found[1] + MASK, text)
    text = _TOKEN.sub(MASK, text)
    return _RANDOM.sub(_mask_random, text)


def _mask_random(found: "Match[str]") -> str:
    """Mask a string that reads like drawn letters and not like words.

    In drawn letters and digits the kind changes at six of ten places; in words run together
    (``ResNet50LayerNorm``) at three of ten or fewer.
    """
    text = found[0]
    is_random = any(_changes(run) > _CHANGES * len(run) for run in _RUN.findall(text))
    if _HEX.search(text):
        is_random = len(set(text)) >= _FEWEST_LETTERS
    return MASK if is_random else text


def _changes(run: str) -> int:
    kinds = [0 if letter.isdigit() else 1 if letter.islower() else 2 for letter in run]
    return sum(kinds[i] != kinds[i - 1] for i in range(1, len(kinds)))


def _words(name: str) -> List[str]:
    return [word.lower() for word in _WORD.findall(name)]
