"""Bugs of the target beside draft processes."""

from tests.plants.plant import Plant, Way

_ASYNC = frozenset({Way.ASYNC})
_LAW = "tests/exactness/test_asynchronous_law.py"

PLANTS = [
    Plant(
        name="pushed-laws-of-place-0",
        file="target_node/asynchronous.py",
        symbol="_law_of",
        was="block.push.law_probs[block.place, :length]",
        becomes="block.push.law_probs[0, :length]",
        tests=(f"{_LAW}::test_throws_have_their_law[in time-rejection]",),
        breaks="every block of a push is judged by the probabilities of its first block",
        ways=_ASYNC,
    ),
    Plant(
        name="laws-of-misses-first",
        file="target_node/asynchronous.py",
        symbol="AsynchronousSpeculation.laws",
        was="for row in rows:",
        becomes="for row in sorted(rows, key=lambda row: row.sequence in self._blocks):",
        tests=(f"{_LAW}::test_throws_have_their_law[misses drafted here-rejection]",),
        breaks="laws of local drafts attach to rows that have a pushed block",
        ways=_ASYNC,
    ),
]
