import pytest

from draft_node.training.schedule import ActiveClock, Schedule


def test_rate_warms_up_stays_and_falls_to_zero() -> None:
    schedule = Schedule(total=1000, decay=200, warmup=50)
    assert 0 < schedule.scale(0) < 0.1
    assert schedule.scale(25) == pytest.approx(0.5)
    assert schedule.scale(400) == schedule.scale(800) == 1.0
    assert schedule.scale(850) == pytest.approx(0.5)
    assert schedule.scale(1000) == 0
    assert schedule.finished(1000)
    assert not schedule.finished(999)


def test_rate_never_rises_after_the_warm_up() -> None:
    schedule = Schedule(total=100, decay=40)
    rates = [schedule.scale(second) for second in range(10, 120)]
    assert rates == sorted(rates, reverse=True)


def test_shorter_run_starts_its_decay_earlier() -> None:
    assert Schedule(1000, 200).scale(700) == 1.0
    assert Schedule(800, 200).scale(700) < 0.5


def test_a_stopped_process_does_not_use_up_the_schedule() -> None:
    clock = ActiveClock()
    for _ in range(10):
        clock.add(2.0)
    assert clock.add(600.0) == 2.0
    assert clock.active_s == 22.0


def test_slower_steps_count_in_full() -> None:
    clock = ActiveClock(recent=[1.0] * 10)
    assert clock.add(4.0) == 4.0


def test_a_schedule_in_steps_does_not_look_at_the_clock() -> None:
    by_steps = Schedule.of_drafter(minutes=15.0, steps=1000, warmup_s=20)
    assert by_steps.elapsed(active_s=1e6, step=7) == 7
    assert by_steps.scale(500) == 1.0 > by_steps.scale(501) > by_steps.scale(999) > 0
    assert by_steps.scale(25) == pytest.approx(0.5)
    assert not by_steps.finished(999)
    assert by_steps.finished(1000)
    by_minutes = Schedule.of_drafter(minutes=15.0, steps=None, warmup_s=20)
    assert by_minutes.elapsed(active_s=90.0, step=7) == 90.0
    assert (by_minutes.total, by_minutes.decay, by_minutes.warmup) == (900, 450, 20)
