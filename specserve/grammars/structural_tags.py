# pyright: strict
"""Structural tags: text with parts that keep to schemas, in llguidance's words.

The document is that of vLLM's and xgrammar's `structural_tag`, in both of its forms. Texts of it
that are tokens of their own, as marks of tool calls often are, are those tokens and no spelling.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast

import llguidance
import msgspec

JsonSchema = dict[str, Any] | bool


class ConstString(msgspec.Struct, frozen=True, tag="const_string", forbid_unknown_fields=True):
    value: str


class Schema(msgspec.Struct, frozen=True, tag="json_schema", forbid_unknown_fields=True):
    json_schema: JsonSchema


class Regex(msgspec.Struct, frozen=True, tag="regex", forbid_unknown_fields=True):
    pattern: str


class AnyText(msgspec.Struct, frozen=True, tag="any_text", forbid_unknown_fields=True):
    """It ends at the end of its tag, or with the answer."""


class InOrder(msgspec.Struct, frozen=True, tag="sequence", forbid_unknown_fields=True):
    elements: "list[Format]"


class Or(msgspec.Struct, frozen=True, tag="or", forbid_unknown_fields=True):
    elements: "list[Format]"


class Tag(msgspec.Struct, frozen=True, tag="tag", forbid_unknown_fields=True):
    begin: str
    content: "Format"
    end: str | list[str]  # any of them


class TriggeredTags(msgspec.Struct, frozen=True, tag="triggered_tags", forbid_unknown_fields=True):
    """Any text, in which each trigger begins one of the tags that begin with it."""

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False


class TagsWithSeparator(
    msgspec.Struct, frozen=True, tag="tags_with_separator", forbid_unknown_fields=True
):
    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    ConstString | Schema | Regex | AnyText | InOrder | Or | Tag | TriggeredTags
    | TagsWithSeparator
)  # fmt: skip


class _Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    begin: str
    end: str
    schema: JsonSchema | str


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either `format`, or the older `structures` and `triggers`."""

    format: Format | None = None
    structures: list[_Structure] = []
    triggers: list[str] = []
    type: str = "structural_tag"


def lark_of(text: str, tokens: llguidance.LLTokenizer, style: dict[str, Any]) -> str:
    """The grammar of a document; `style`: how JSON is written. Raises ValueError."""
    try:
        return _Writer(tokens, style).grammar(_format_of(msgspec.json.decode(text, type=_Document)))
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("`", "")) from error
    except RecursionError as error:
        raise ValueError("its formats are nested too deeply") from error


def _format_of(document: _Document) -> Format:
    if document.format is not None:
        return document.format
    if not document.structures:
        raise ValueError("it has neither a format nor structures with triggers")
    tags = [
        Tag(
            each.begin,
            Schema(json.loads(each.schema) if isinstance(each.schema, str) else each.schema),
            each.end,
        )
        for each in document.structures
    ]
    return TriggeredTags(document.triggers, tags)


# With what stands before it, of which no backslash is one that takes the slash.
_BARE_SLASH = re.compile(r"(?<!\\)((?:\\\\)*)/")


class _Writer:
    """Rules of one grammar."""

    def __init__(self, tokens: llguidance.LLTokenizer, style: dict[str, Any]) -> None:
        self._tokens, self._style = tokens, style
        self._specials = special_tokens(tokens)
        self._rules: list[str] = []
        self._has_text = False
        self._triggers: set[int] = set()  # tokens that are no text

    def grammar(self, form: Format) -> str:
        start = self._of(form, is_last=True) or '""'
        lines = ["%llguidance {}", f"start: {start}", *self._rules]
        if self._has_text:
            lines += self._text_rules()
        return "\n".join(lines) + "\n"

    def _rule(self, body: str, options: str = "") -> str:
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _of(self, form: Format, *, is_last: bool) -> str:
        """An expression; `is_last`: nothing comes behind it."""
        match form:
            case ConstString() | Schema() | Regex():
                return self._part(form)
            case AnyText():
                if not is_last:
                    raise ValueError("any_text has to be the content of a tag, or to stand last")
                return self._text()
            case InOrder():
                parts = [self._of(each, is_last=False) for each in form.elements[:-1]]
                last = (self._of(each, is_last=is_last) for each in form.elements[-1:])
                return _joined([*parts, *last])
            case Or():
                return self._one_of(self._of(each, is_last=is_last) for each in form.elements)
            case Tag():
                return _joined([self._fixed(form.begin), self._inside(form, is_last=is_last)])
            case TriggeredTags():
                if not is_last:
                    raise ValueError("triggered_tags have to stand last")
                return self._triggered(form)
            case TagsWithSeparator():
                return self._separated(form, is_last=is_last)

    def _part(self, form: ConstString | Schema | Regex) -> str:
        if isinstance(form, ConstString):
            return self._fixed(form.value)
        if isinstance(form, Regex):
            pattern = _BARE_SLASH.sub(r"\1\/", form.pattern).replace("\n", "\\n")
            return self._rule(f"/{pattern}/")
        return self._rule(f"%json {self._schema(form.json_schema)}")

    def _one_of(self, expressions: Iterable[str]) -> str:
        found = list(expressions)
        if not found:
            raise ValueError("of no tags or elements there is none to choose")
        return self._rule(" | ".join(each or '""' for each in found))

    def _schema(self, schema: JsonSchema) -> str:
        if isinstance(schema, bool):
            return json.dumps(schema)
        wishes: Any = schema.get("x-guidance")
        own = cast(dict[str, Any], wishes) if isinstance(wishes, dict) else {}
        style = self._style | own
        return json.dumps(schema | {"x-guidance": style})

    # --- fixed texts ----------------------------------------------------------------------------

    def _pieces(self, text: str) -> list[str | int]:
        """A text as texts and ids of special tokens."""
        names = sorted(self._specials, key=len, reverse=True)  # the longest first
        if not names:
            return [text] if text else []
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        return [self._specials.get(part, part) for part in parts if part]

    def _fixed(self, text: str) -> str:
        return _joined(map(_atom, self._pieces(text)))

    # --- tags -----------------------------------------------------------------------------------

    def _inside(self, tag: Tag, *, is_last: bool) -> str:
        """Content and end of a tag."""
        ends = [tag.end] if isinstance(tag.end, str) else tag.end
        if isinstance(tag.content, AnyText) and any(ends):
            return self._one_of(self._text_until(end) for end in ends)
        closing = self._fixed(ends[0]) if len(ends) == 1 else self._one_of(map(self._fixed, ends))
        is_open = is_last and not any(ends)
        return _joined([self._of(tag.content, is_last=is_open), closing])

    def _separated(self, form: TagsWithSeparator, *, is_last: bool) -> str:
        is_one = form.stop_after_first
        tag = self._one_of(self._of(each, is_last=is_last and is_one) for each in form.tags)
        further = _joined([self._fixed(form.separator), tag])
        tags = tag if is_one else self._rule(f"{tag} ({further})*")
        return tags if form.at_least_one else self._rule(f'{tags} | ""')

    def _triggered(self, form: TriggeredTags) -> str:
        bodies: dict[str, list[str]] = {trigger: [] for trigger in form.triggers}
        for tag in form.tags:
            found = self._lead_of(tag, form.triggers)
            bodies.setdefault(found, [])
            opening = self._fixed(tag.begin.removeprefix(found))
            inside = self._inside(tag, is_last=form.stop_after_first)
            bodies[found].append(_joined([opening, inside]))
        leads = map(self._pieces, bodies)
        self._triggers |= {ids[0] for ids in leads if ids and isinstance(ids[0], int)}
        tags = self._one_of(
            _joined([self._text_until(trigger), self._one_of(each)])
            for trigger, each in bodies.items()
            if each
        )
        if form.stop_after_first:
            return tags if form.at_least_one else self._one_of([tags, self._text()])
        return self._rule(f"({tags}){'+' if form.at_least_one else '*'} {self._text()}")

    def _lead_of(self, tag: Tag, triggers: Sequence[str]) -> str:
        """What text ends at where this tag begins: of triggers within each other the shortest.

        A token that is longer than the trigger is one as a whole: none of it is spelt.
        """
        found = [each for each in triggers if each and tag.begin.startswith(each)]
        if not found:
            raise ValueError(f"no trigger is the beginning of the tag {tag.begin[:64]!r}")
        lead = min(found, key=len)
        tokens = [each for each in self._specials if tag.begin.startswith(each)]
        return max([lead, *tokens], key=len)

    # --- free text ------------------------------------------------------------------------------

    def _text(self) -> str:
        """Whatever comes, special tokens as well, but for triggers and ends of answers."""
        self._has_text = True
        return "text"

    def _text_until(self, end: str) -> str:
        """Text up to the first `end`, and that."""
        self._has_text = True
        pieces = self._pieces(end)
        if pieces and isinstance(pieces[0], int):
            self._triggers.add(pieces[0])
            return _joined(["text", *map(_atom, pieces)])
        if len(pieces) != 1:
            raise ValueError(f"text that ends at {end[:64]!r} is not supported")
        return f"before {self._rule(f'TEXT {_atom(pieces[0])}', '[lazy]')}"

    def _text_rules(self) -> list[str]:
        no_text = {*self._triggers, *self._tokens.eos_tokens}
        ids = sorted(n for n in self._specials.values() if n not in no_text)
        others = f"<[{_ranges(ids)}]>"
        return [
            f"text: TEXT ({others} TEXT)*" if ids else "text: TEXT",
            f"before: (TEXT {others})*" if ids else 'before: ""',
            r"TEXT: /(.|\n)*/",
        ]


@lru_cache(maxsize=2)
def special_tokens(tokens: llguidance.LLTokenizer) -> dict[str, int]:
    """Ids by text of tokens that no spelling stands for; a tenth of a second at first."""
    ids = filter(tokens.is_special_token, range(tokens.vocab_size))
    named = {tokens.decode_str([token_id]): token_id for token_id in ids}
    return {name: token_id for name, token_id in named.items() if name}


def _joined(expressions: Iterable[str]) -> str:
    return " ".join(filter(None, expressions))


def _atom(piece: str | int) -> str:
    if isinstance(piece, int):
        return f"<[{piece}]>"
    return json.dumps(piece, ensure_ascii=False)


def _ranges(ids: Sequence[int]) -> str:
    """Ids in ascending order as "3-16,20"."""
    starts = [ids[0], *(later for former, later in pairwise(ids) if later != former + 1)]
    ends = [*(former for former, later in pairwise(ids) if later != former + 1), ids[-1]]
    spans = zip(starts, ends, strict=True)
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in spans)
