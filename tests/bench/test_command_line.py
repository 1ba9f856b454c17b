"""Flags of benches that were renamed."""

import pytest

from bench.configurations import __main__ as configurations
from bench.regimes import __main__ as regimes


@pytest.mark.parametrize("bench", [configurations, regimes])
@pytest.mark.parametrize("words", [["--rules", "coupled"], ["--rules=coupled"], ["--rules"]])
def test_a_flag_that_was_renamed_is_answered_with_its_new_name(bench, words, capfd):
    with pytest.raises(SystemExit) as caught:
        bench.main(["--quick", *words])
    assert caught.value.code == 2
    assert capfd.readouterr().err.endswith("error: --rules is now --methods\n")


@pytest.mark.parametrize("bench", [configurations, regimes])
def test_the_help_does_not_offer_it(bench):
    told = bench.build_parser().format_help()
    assert "--methods" in told
    assert "--rules" not in told
