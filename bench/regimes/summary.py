# pyright: strict
"""The figures that goals are set for: ratios of modes at batch 1, hit rates, and `auto`.

Where the best of several arms is wanted, it is picked on the groups of even number and compared on
the others, so that luck in the pick does not become gain.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import msgspec

from bench.bootstrap import Interval, Rate, against, mean_ratio
from bench.drafter_choice import DSPARK, LANGUAGE_MODEL
from bench.regimes import rates
from bench.regimes.arms import ASYNC, AUTO, OFF, SYNC, Arm
from bench.regimes.measure import Found, Group
from bench.regimes.records import Setting
from bench.regimes.results import quiet
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.drafter_source import NGRAM

Summary = dict[str, float | None]
Wanted = Callable[[Arm], bool]
Contestants = Mapping[Setting, Sequence[Group]]
Compared = tuple[Hashable, tuple[Rate, Rate]]  # on which prompts, and the speeds of two arms

# Contests: of the default drafter, the first that there is; of the other one.
MAIN, HEAVIER = (LANGUAGE_MODEL, NGRAM), DSPARK
_PRECISION = 4


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the summary, and what it should at least be."""

    key: str
    least: float
    text: str


GOALS = (
    Goal(key="async_over_sync_lm", least=1.4, text="async over sync, standalone LM, T 0"),
    Goal(key="async_over_sync_lm_t1", least=1.15, text="the same, T 1, best methods"),
    Goal(key="async_over_sync_dspark_t0", least=1.15, text="async over best sync DSpark, T 0"),
    Goal(key="async_over_sync_dspark_t1", least=1.15, text="the same, T 1, best methods"),
    Goal(key="auto_over_best", least=0.97, text="auto over the best mode, worst batch size"),
    Goal(key="hit_rate_t0", least=0.90, text="hit rate, T 0"),
    Goal(key="hit_rate_t1", least=0.85, text="hit rate, T 1, coupled"),
    Goal(key="hit_rate_t1_foreseeable", least=0.75, text="hit rate, T 1, foreseeable"),
)


def verdict_on(goal: Goal, summary: Summary) -> str:
    """Whether its figure reaches it, if there is one."""
    value, high = summary.get(goal.key), summary.get(f"{goal.key}_hi")
    if value is None or high is None:
        return "not measured"
    return against(goal.least, value, high)


def summarise(found: Found, ballasts: Sequence[str]) -> Summary:
    """Of every ballast, by its name; the first one's figures also without."""
    summary: Summary = {}
    for ballast in ballasts:
        own = {s: quiet(groups) for s, groups in found.items() if s.ballast == ballast and groups}
        figures = _of_one_ballast(own)
        if ballast == ballasts[0]:
            summary |= figures
        summary |= {f"{key}_{ballast}": figure for key, figure in figures.items()}
    return summary


def _of_one_ballast(found: Contestants) -> Summary:
    smallest = min((setting.batch_size for setting in found), default=1)
    at_1 = {s: groups for s, groups in found.items() if s.batch_size == smallest}
    name = _main_name(found)
    main, heavier = _contest(at_1, name), _contest(at_1, HEAVIER)
    figures: dict[str, Interval | None] = {}
    for key, contest in ((name, main), (HEAVIER, heavier)):
        for sampling, temperature in (("t0", 0.0), ("t1", 1.0)):
            settings = _at(contest, temperature)
            ratio = compare(settings, _is(ASYNC), _is(SYNC))
            figures[f"async_over_sync_{key}_{sampling}"] = ratio
            equal_cores = compare(settings, _is(ASYNC), lambda arm: arm.service.threads > 1)
            figures[f"async_over_two_threads_{key}_{sampling}"] = equal_cores
    figures[f"async_over_sync_{name}"] = figures[f"async_over_sync_{name}_t0"]
    for suffix, contest in (("", main), (f"_{HEAVIER}", heavier)):
        figures[f"hit_rate{suffix}_t0"] = _hit_rate(_at(contest, 0.0), None)
        for method in VerificationMethod:
            name = "" if method is VerificationMethod.COUPLED else f"_{method.value}"
            figures[f"hit_rate{suffix}_t1{name}"] = _hit_rate(_at(contest, 1.0), method)
    figures |= _auto(found)
    summary: Summary = {}
    for key, figure in figures.items():
        summary |= entries(key, figure)
    is_looping = any(setting.is_looping for setting in (*_at(main, 0.0), *_at(heavier, 0.0)))
    return summary | {"t0_is_looping_text": float(is_looping)}


def entries(key: str, figure: Interval | None) -> Summary:
    if figure is None:
        return {key: None, f"{key}_lo": None, f"{key}_hi": None}
    values = (figure.value, figure.low, figure.high)
    names = (key, f"{key}_lo", f"{key}_hi")
    return {name: round(value, _PRECISION) for name, value in zip(names, values, strict=True)}


def _main_name(found: Contestants) -> str:
    """Of the contest of the default drafter: prompt lookup where no other comes with a target."""
    names = {setting.contest for setting in found}
    return next((name for name in MAIN if name in names), MAIN[0])


def _contest(found: Contestants, name: str) -> Contestants:
    return {setting: groups for setting, groups in found.items() if setting.contest == name}


def _at(found: Contestants, temperature: float) -> Contestants:
    """The settings of a temperature; of looping text only where there is no other."""
    settings = {s: groups for s, groups in found.items() if s.temperature == temperature}
    sound = {s: groups for s, groups in settings.items() if not s.is_looping}
    return sound or settings


def _is(mode: str) -> Wanted:
    return lambda arm: arm.service.mode == mode and arm.service.threads == 1


# --- comparing arms -----------------------------------------------------------------------------


def compare(found: Contestants, over: Wanted, under: Wanted) -> Interval | None:
    """The best arm of one kind over the best of another, the mean over settings (domains).

    With one arm of each kind there is nothing to pick, and all groups count.
    """
    arms = _arms(found)
    overs, unders = list(filter(over, arms)), list(filter(under, arms))
    if not overs or not unders:
        return None
    if len(overs) == len(unders) == 1:
        return ratio_of(found, overs[0], unders[0])
    to_pick, to_compare = _halves(found)
    return ratio_of(to_compare, best_arm(to_pick, overs), best_arm(to_pick, unders))


def _arms(found: Contestants) -> list[Arm]:
    """Those that took part in every setting."""
    present = [groups[0].traces for groups in found.values()]
    return [arm for arm in present[0] if all(arm in one for one in present)] if present else []


def _halves(found: Contestants) -> tuple[Contestants, Contestants]:
    """Groups of even and of odd number; all of them twice where a half would be empty."""
    halves = tuple(
        {s: [g for g in groups if g.number % 2 == part] for s, groups in found.items()}
        for part in (0, 1)
    )
    if all(groups for half in halves for groups in half.values()):
        return halves[0], halves[1]
    return found, found


def best_arm(found: Contestants, arms: Sequence[Arm]) -> Arm:
    """By the mean over settings of its speed over the first arm's."""

    def mean_speed(arm: Arm) -> float:
        speeds = [(_speed(groups, arm), _speed(groups, arms[0])) for groups in found.values()]
        return sum(own.value / other.value for own, other in speeds) / len(speeds)

    everywhere = list(found.values())
    measurable = [arm for arm in arms if all(_is_known(_speed(g, arm)) for g in everywhere)]
    return max(measurable, key=mean_speed) if arms[0] in measurable else arms[0]


def _speed(groups: Iterable[Group], arm: Arm) -> Rate:
    return rates.rate([group.traces[arm] for group in groups], rates.tokens_per_s)


def ratio_of(found: Contestants, over: Arm, under: Arm) -> Interval | None:
    return _mean_ratio([_compared(s, groups, over, under) for s, groups in found.items()])


def _compared(setting: Setting, groups: Sequence[Group], over: Arm, under: Arm) -> Compared:
    prompts = (setting.domain, setting.is_sound, tuple(group.number for group in groups))
    return prompts, (_speed(groups, over), _speed(groups, under))


def _mean_ratio(compared: Sequence[Compared]) -> Interval | None:
    known = [(prompts, pair) for prompts, pair in compared if all(map(_is_known, pair))]
    if not known:
        return None
    return mean_ratio([pair for _, pair in known], [prompts for prompts, _ in known])


def _is_known(found: Rate) -> bool:
    """Something was measured: neither no time nor no token."""
    return bool(found.over.sum() > 0 and found.under.sum() > 0)


# --- hit rates and auto -------------------------------------------------------------------------


def _hit_rate(found: Contestants, method: VerificationMethod | None) -> Interval | None:
    """Of the asynchronous arm under a method (None: the only one there is), mean over domains."""
    pairs: list[tuple[Rate, Rate]] = []
    for groups in found.values():
        arms = [a for a in groups[0].traces if _is(ASYNC)(a) and method in (None, a.method)]
        if not arms:
            return None
        hits = rates.rate([group.traces[arms[0]] for group in groups], rates.hits)
        if hits.under.sum() > 0:
            # As a ratio to one: the mean over domains of rates, with its interval.
            pairs.append((hits, Rate.of([(1.0, 1.0)] * hits.num_prompts)))
    return mean_ratio(pairs) if pairs else None


def _auto(found: Contestants) -> dict[str, Interval | None]:
    """At every batch size, and the worst of them."""
    main = _contest(found, _main_name(found))
    figures: dict[str, Interval] = {}
    for size in sorted({setting.batch_size for setting in main}):
        ratio = _auto_at({s: groups for s, groups in main.items() if s.batch_size == size})
        if ratio is not None:
            figures[f"auto_over_best_b{size}"] = ratio
    worst = min(figures.values(), key=lambda figure: figure.value, default=None)
    return {"auto_over_best": worst, **figures}


def _auto_at(found: Contestants) -> Interval | None:
    """The mean over samplings and domains; the best mode is picked for every sampling."""
    compared: list[Compared] = []
    samplings = [(0.0, None), *((1.0, method) for method in VerificationMethod)]
    for temperature, method in samplings:
        settings = _at(found, temperature)
        arms = [arm for arm in _arms(settings) if method in (None, arm.method) or arm.is_plain]
        autos = [arm for arm in arms if arm.service.mode == AUTO]
        others = [arm for arm in arms if any(_is(r)(arm) for r in (OFF, SYNC, ASYNC))]
        if not autos or not others:
            continue
        to_pick, to_compare = _halves(settings)
        best = best_arm(to_pick, others)
        compared += [_compared(s, groups, autos[0], best) for s, groups in to_compare.items()]
    return _mean_ratio(compared)
