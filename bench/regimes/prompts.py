"""The prompts of a run: those that others measure with, or held-out texts by domain.

Of the latter, greedy decoding is measured on some. Where too few of a domain's have greedy text
that does not repeat itself, more held-out text of this installation is searched. If that does not
suffice either, greedy figures are taken on text that loops, and say so: it is easy to draft.
"""

import functools
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from pydoc_data.topics import topics

from bench.conversations import Questions
from bench.domains import ARITHMETIC, GreedyCheck, check_greedy, draw_prompts, known_texts
from bench.in_process import Engine
from bench.known_texts import KnownTexts
from bench.regimes.plan import Plan
from draft_node.training import corpus
from draft_node.training.holdout import is_held_out
from draft_node.training.prompts import select
from specserve.client import Prompt
from specserve.models.tokenizer_files import load_tokenizer

CHECK_BATCH = 16
_CHUNK = 4 * CHECK_BATCH  # candidates between two looks at whether there are enough
_ORIGIN, _PACKAGES = "stdlib", "site-packages"

TokenPrompts = list[list[int]]
Prompts = Sequence[Prompt]


class PromptChoice:
    """Prompts by domain; of those for greedy decoding, whether their text loops."""

    def __init__(
        self,
        by_domain: Mapping[str, Prompts],
        sound: Mapping[str, Prompts],
        checks: Sequence[GreedyCheck],
        longest: int = 0,
        *,
        is_as_it_comes: bool = False,
    ) -> None:
        """`sound`: prompts of each domain that greedy decoding is measured on.

        Those whose greedy text does not repeat itself or, `is_as_it_comes`, all. `longest`: in
        tokens.
        """
        self.checks = list(checks)
        self.longest = longest
        self._is_as_it_comes = is_as_it_comes
        self._by_domain = by_domain
        self._sound = sound

    @staticmethod
    def of(questions: Questions) -> "PromptChoice":
        """All of them as one domain, whose greedy text is taken as it comes."""
        said = [q.prompt if isinstance(q.prompt, str) else list(q.prompt) for q in questions.asked]
        longest = max(len(question.token_ids) for question in questions.asked)
        by_domain = {questions.name: said}
        return PromptChoice(by_domain, by_domain, [], longest, is_as_it_comes=True)

    @property
    def domains(self) -> list[str]:
        return list(self._by_domain)

    def is_looping(self, domain: str, batch_size: int, plan: Plan) -> bool:
        """Whether greedy decoding has to make do with looping text."""
        if self._is_as_it_comes:
            return False
        return len(self._sound[domain]) < max(plan.min_greedy_prompts, 2 * batch_size)

    def groups(self, domain: str, batch_size: int, count: int, *, is_sound: bool) -> list[Prompts]:
        """`count` groups of `batch_size` different prompts, or as many as there are."""
        return _groups(self._prompts(domain, is_sound=is_sound), batch_size)[:count]

    def others(self, domain: str, batch_size: int, count: int, *, is_sound: bool) -> list[Prompts]:
        """Groups of what `groups` leaves, or of what it takes where that is not enough.

        Never of other text: where sound text is rare, all else loops, which is easy to draft, and
        whoever learned his speeds from that would choose by what is not measured.
        """
        prompts = self._prompts(domain, is_sound=is_sound)
        taken, left = prompts[: count * batch_size], prompts[count * batch_size :]
        return _groups(left, batch_size) or _groups(taken, batch_size)

    def _prompts(self, domain: str, *, is_sound: bool) -> Prompts:
        return self._sound[domain] if is_sound else self._by_domain[domain]


def _groups(prompts: Prompts, size: int) -> list[Prompts]:
    """Full ones."""
    starts = range(0, len(prompts) - size + 1, size)
    return [prompts[start : start + size] for start in starts]


def choose_prompts(target: Path, plan: Plan, plain: Engine | None, check_room: int) -> PromptChoice:
    """Draw prompts and, with `plain`, look at their greedy text; `check_room` tokens fit a row."""
    by_domain = {d: draw_prompts(d, target, plan.num_candidates) for d in plan.domains}
    sound: dict[str, TokenPrompts] = {}
    checks: list[GreedyCheck] = []
    known = known_texts(target)
    for domain, prompts in by_domain.items():
        if plain is None:
            continue
        search = _Search(domain, plan.num_sound_wanted, plain, check_room, known)
        search.look(prompts)
        if len(search.found) < plan.min_greedy_prompts and domain != ARITHMETIC:
            search.look(_more_prompts(target, domain, prompts, plan.num_more_candidates))
        sound[domain] = search.found
        checks.append(search.check)
    known_prompts = [p for some in (by_domain, sound) for own in some.values() for p in own]
    return PromptChoice(by_domain, sound, checks, max(map(len, known_prompts)))


class _Search:
    """Looks for prompts with sound greedy text until there are enough."""

    def __init__(
        self, domain: str, num_wanted: int, plain: Engine, room: int, known: KnownTexts
    ) -> None:
        self.found: TokenPrompts = []
        self._domain = domain
        self._num_wanted = num_wanted
        self._plain = plain
        self._room = room
        self._known = known
        self._num_checked = 0
        self._places: list[int] = []

    def look(self, candidates: TokenPrompts) -> None:
        fitting = [prompt for prompt in candidates if len(prompt) <= self._room]
        for first in range(0, len(fitting), _CHUNK):
            if len(self.found) >= self._num_wanted:
                return
            chunk = fitting[first : first + _CHUNK]
            check = check_greedy(self._domain, chunk, self._plain, CHECK_BATCH, self._known)
            self.found += [chunk[place] for place in check.qualifying]
            self._places += [self._num_checked + place for place in check.qualifying]
            self._num_checked += len(chunk)

    @property
    def check(self) -> GreedyCheck:
        return GreedyCheck(
            domain=self._domain, num_candidates=self._num_checked, qualifying=self._places
        )


def _more_prompts(target: Path, domain: str, known: TokenPrompts, count: int) -> TokenPrompts:
    """Held-out text of this Python installation, cut as the packaged prompts were."""
    if not count:
        return []
    texts = [entry["text"] for entry in select(_held_out(), domain, len(known) + count)]
    tokenizer = load_tokenizer(target)
    encoded = [list(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    seen = {tuple(prompt) for prompt in known}
    return [prompt for prompt in encoded if tuple(prompt) not in seen][:count]


@functools.cache
def _held_out() -> list[corpus.Document]:
    """Of the standard library and `help()`, by the training's own split and with its cleaning."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = [
        corpus.Document("prose", "topics", f"topics:{name}", text)
        for name, text in sorted(topics.items())
        if is_held_out(f"topics:{name}", corpus.HELD_OUT_SHARE["topics"])
    ]
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        source = f"{_ORIGIN}:{place.as_posix()}"
        held_out = is_held_out(source, corpus.HELD_OUT_SHARE[_ORIGIN])
        if not held_out or _PACKAGES in place.parts:
            continue
        code = path.read_text(encoding="utf-8", errors="ignore").expandtabs(8)
        found.append(corpus.Document("code", _ORIGIN, source, code))
        found.append(corpus.Document("prose", _ORIGIN, source, corpus.docstrings(code)))
    return corpus.collect(found)
