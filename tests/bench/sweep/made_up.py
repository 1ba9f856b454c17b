"""Made-up turns with known figures."""

from bench.sweep.arms import Drafting, NamedArm, arms_of
from bench.sweep.plan import QUICK, Load, Plan
from bench.sweep.records import Answer, Cell


def arms(plan: Plan = QUICK, num_cores: int | None = 2) -> list[NamedArm]:
    return arms_of(plan, Drafting(), device="cpu", num_cores=num_cores)


def answer(tokens: int = 21, *, seconds: float = 2.1, text: str = "same", **counts) -> Answer:
    """Sent at once; its first token is there after a tenth of a second, a round brings two."""
    fields = {
        "sent_s": 0.0,
        "first_s": 0.1,
        "last_s": seconds,
        "num_tokens": tokens,
        "num_first": 1,
        "num_rounds": (tokens - 1) // 2,
        "num_sync": 0,
        "num_lookups": 0,
        "num_hits": 0,
        "num_verified": 0,
        "window_tokens": tokens,
        "window_s": seconds,
        "text": text,
    }
    return Answer(**(fields | counts))


def cell(
    arm: str,
    speed: float = 10.0,
    *,
    in_flight: int = 1,
    repeat: int = 0,
    temperature: float = 1.0,
    num_answers: int = 4,
    session: int = 0,
    **counts,
) -> Cell:
    """All requests together get `speed` tokens a second."""
    seconds = 20 * in_flight / speed
    made = [
        answer(21, seconds=seconds, window_tokens=20, text=str(n), **counts)
        for n in range(num_answers)
    ]
    return Cell(
        load=Load(in_flight=in_flight),
        temperature=temperature,
        repeat=repeat,
        arm=arm,
        answers=made,
        took_s=seconds * num_answers / in_flight,
        counters={"num_decode_rounds": 10.0, "forward_s": 0.5},
        foreign_share=0.01 * repeat,
        session=session,
        elapsed_s=10.0 * (repeat + 1),
    )
