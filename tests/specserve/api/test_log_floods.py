"""What strangers make libraries say is told now and then, in one line each."""

import logging

import pytest

from specserve.api.log_floods import dam_log_floods

CYTHON, UVICORN = "grpc._cython.cygrpc", "uvicorn.error"


@pytest.fixture
def dammed():
    loggers = [logging.getLogger(name) for name in (CYTHON, UVICORN, "asyncio")]
    filters = [logger.filters.copy() for logger in loggers]
    dam_log_floods()
    yield
    for logger, before in zip(loggers, filters, strict=True):
        logger.filters = before


def test_a_flood_is_told_at_powers_of_two_and_without_tracebacks(dammed, caplog):
    for _ in range(20):
        try:
            b"\xff".decode()
        except UnicodeDecodeError:
            logging.getLogger(CYTHON).exception("Invalid encoding on %s", b"\xff")
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"Invalid encoding on b'\\xff' (the {count}. of its kind)" for count in (1, 2, 4, 8, 16)
    ]
    assert all(record.exc_info is None for record in caplog.records)
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_what_else_they_say_is_left_as_it_is(dammed, caplog):
    for _ in range(3):
        logging.getLogger(UVICORN).error("the disk is full")
    assert [record.getMessage() for record in caplog.records] == ["the disk is full"] * 3
