"""Bugs of the drafter beside the target."""

from tests.plants.plant import Plant, Way

PLANTS = [
    Plant(
        name="colocated-keys-without-round",
        file="target_node/drafting.py",
        symbol="ColocatedDraft._rule",
        was="rounds=[row.sequence.num_rounds for row in rows],",
        becomes="rounds=[0] * len(rows),",
        tests=(
            "tests/exactness/test_asynchronous_law.py"
            "::test_throws_have_their_law[moody coins drafted here-rejection]",
        ),
        breaks="a miss is drafted again by noise that already decided what is prepared",
        ways=frozenset({Way.ASYNC}),
    ),
]
