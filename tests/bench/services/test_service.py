"""How services are asked, and what room they have."""

import argparse

import pytest

from bench.services.running import kv_memory_flags
from bench.services.service import OFF, SYNC, Service, arms_of
from specserve.commands.service_options import add_service_options, read_config
from specserve.processes.launch import resolve_here
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.config import BLOCK_SIZE
from specserve.settings.target_source import EMBEDDED_TARGET

COUPLED, FORESEEABLE = VerificationMethod.COUPLED, VerificationMethod.FORESEEABLE
REJECTION = VerificationMethod.REJECTION
PLAIN = Service(name="off", mode=OFF, flags=())
SYNCED = Service(name="sync", mode=SYNC, flags=(), verification=REJECTION)


def test_a_service_is_asked_once_for_each_method_that_it_has():
    arms = arms_of([PLAIN, SYNCED], [COUPLED, FORESEEABLE, REJECTION], 1.0)
    assert [(arm.service.name, arm.method) for arm in arms] == [
        ("off", COUPLED), ("sync", REJECTION), ("sync", COUPLED),
    ]  # fmt: skip
    only = arms_of([PLAIN, SYNCED], [FORESEEABLE], 1.0)
    assert [arm.service.name for arm in only] == ["off"]


def test_at_temperature_0_all_methods_are_one():
    arms = arms_of([PLAIN, SYNCED], [FORESEEABLE, REJECTION], 0.0)
    assert [(arm.service.name, arm.method) for arm in arms] == [("off", COUPLED), ("sync", COUPLED)]


@pytest.mark.parametrize(("num_tokens", "longest"), [(200, 400), (20_000, 2048)])
def test_services_have_room_for_the_prompts_and_no_more(num_tokens, longest):
    flags = kv_memory_flags(EMBEDDED_TARGET, 30_000_000, num_tokens)
    parser = argparse.ArgumentParser()
    add_service_options(parser)
    words = ["--target", "tiny", "--ballast", "30M", *flags]
    config = resolve_here(read_config(parser.parse_args(words)))
    assert config.model.max_model_len == longest
    assert config.num_blocks is not None
    assert config.num_blocks * BLOCK_SIZE >= 2 * num_tokens
