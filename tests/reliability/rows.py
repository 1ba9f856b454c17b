"""Faults and inputs that a service has to survive, what is required, and which tests show it.

docs/reliability.md is made of this and of what `python -m tests.reliability` has measured; a test
checks that every test that is named here exists. Numbers stay: records and tests refer to them.
"""

from dataclasses import dataclass

_DRAFTS = "tests/reliability/test_drafts.py::"
_ENGINE = "tests/reliability/test_engine.py::"
_LIFETIME = "tests/reliability/test_lifetime.py::"
_REQUESTS = "tests/reliability/test_requests.py::"
_PAIRS = "tests/service/test_asynchronous.py::"
_FAILURES = "tests/service/test_failures.py::"
_DEGRADED = "tests/reliability/test_degraded.py::"
_KEEPER = "tests/specserve/processes/test_draft_keeper.py::"
_LAUNCH = "tests/specserve/processes/test_launch.py::"
_LIFE = "tests/specserve/processes/test_service_lifecycle.py::"
_LINKS = "tests/target_node/speculation/test_draft_links.py::"
_ENDINGS = "tests/specserve/api/test_endings.py::"
_HTTP = "tests/specserve/api/http/test_overload.py::"
_NODE = "tests/target_node/test_node.py::"
_LIES = "tests/reliability/fuzz/test_draft_lies.py::"
_BOMBS = "tests/reliability/fuzz/test_bombs.py::"
_CHURN = "tests/reliability/fuzz/test_churn.py::"
_FRAMES = "tests/reliability/fuzz/test_fuzz.py::"
_SALTS = "tests/reliability/fuzz/test_salts.py::"
_EXPOSURE = "tests/service/test_exposure.py::"
_LIMITS = "tests/specserve/api/http/test_limits.py::"
_KEYS = "tests/specserve/api/http/test_keys.py::"
_GRPC_KEYS = "tests/specserve/api/test_grpc_keys.py::"


@dataclass(frozen=True)
class Row:
    """One fault. `tests` are paths from the root with the name of a function."""

    number: int
    fault: str
    required: str
    bar: str
    tests: tuple[str, ...] = ()


ROWS = [
    Row(
        1,
        "a draft process is killed in a round",
        "no failed request, plain decoding meanwhile, attached again",
        "0 failed, 0 wrong; noticed within 0.1 s, back within 10 s (95 %)",
        (
            _DRAFTS + "test_a_draft_killed_again_and_again_costs_no_request_and_leaks_nothing",
            _PAIRS + "test_equal_while_drafts_are_killed_stopped_and_lied_to",
            _PAIRS + "test_a_killed_draft_is_noticed_at_once_and_soon_back",
            _PAIRS + "test_a_killed_draft_costs_a_running_request_nothing",
            _LIFE + "test_a_killed_draft_comes_back_while_the_service_goes_on",
        ),
    ),
    Row(
        2,
        "a draft process is stopped (SIGSTOP)",
        "the same",
        "noticed within 1.1 times speculation.draft_timeout_s",
        (
            _DRAFTS + "test_a_draft_that_stands_still_or_spins_is_given_up_within_its_deadline",
            _PAIRS + "test_a_hung_draft_is_noticed_within_its_deadline_and_soon_back",
            _PAIRS + "test_a_short_stop_is_not_noticed",
            _PAIRS + "test_a_draft_that_goes_on_just_after_its_deadline_is_back_at_work",
        ),
    ),
    Row(
        3,
        "the loop of a draft process spins",
        "the same, by the heartbeat of its loop",
        "noticed within 1.1 times speculation.draft_timeout_s",
        (_DRAFTS + "test_a_draft_that_stands_still_or_spins_is_given_up_within_its_deadline",),
    ),
    Row(
        4,
        "a draft process is slow: 3 of 10 turns take ten times as long",
        "its blocks are misses, the link is kept",
        "no teardown; tokens a second at least 0.9 times those of plain decoding",
        (
            _DRAFTS + "test_a_slow_draft_is_kept_and_costs_little",
            _LINKS + "test_a_draft_of_long_turns_is_attached_after_few_of_them",
        ),
    ),
    Row(
        5,
        "a draft process sends garbage",
        "dropped and counted, plain decoding meanwhile",
        "0 crashes, 0 wrong, all refused",
        (
            _LIES + "test_a_lie_is_dropped_and_counted_and_the_next_reply_arrives",
            _LIES + "test_lies_into_a_running_ring_change_no_answer",
            _PAIRS + "test_equal_while_drafts_are_killed_stopped_and_lied_to",
        ),
    ),
    Row(
        6,
        "frames of a link are stale, repeated, early or of another epoch",
        "dropped",
        "0 accepted",
        (
            _LIES + "test_a_lie_is_dropped_and_counted_and_the_next_reply_arrives",
            _LIES + "test_lies_into_a_running_ring_change_no_answer",
        ),
    ),
    Row(
        7,
        "a draft process dies 50 times",
        "started again less and less often, nothing leaks",
        "open files, memory and KV blocks as before",
        (
            _DRAFTS + "test_a_draft_killed_again_and_again_costs_no_request_and_leaks_nothing",
            _KEEPER + "test_a_draft_that_flaps_is_started_less_and_less_often",
        ),
    ),
    Row(
        8,
        "a draft process is absent, or made for another target",
        "the service starts without it and says so; it is not attached",
        "ready; a metric with the reason",
        (
            _DEGRADED + "test_a_service_starts_without_a_draft_that_does_not_come",
            _DEGRADED + "test_a_draft_made_for_another_target_is_refused_by_name",
            _KEEPER + "test_a_draft_that_dies_in_its_first_starts_keeps_nobody_waiting",
            _KEEPER + "test_a_draft_that_says_that_it_cannot_start_ends_the_launch",
            _LINKS + "test_a_draft_that_does_not_fit_is_not_let_in_and_told_of_once",
        ),
    ),
    Row(
        9,
        "a target rank is killed",
        "all ranks end, every stream ends with an error, the exit code says so",
        "streams told within 5 s; all with an error; exit code 1",
        (
            _FAILURES + "test_a_killed_rank_ends_the_service_and_every_stream_with_an_error",
            _LIFE
            + "test_a_killed_target_ends_open_streams_with_an_error_and_the_service_with_code_1",
            _LAUNCH + "test_a_killed_target_rank_is_told_to_the_api_and_ends_the_service",
            _ENDINGS + "test_a_lost_target_ends_every_stream_with_unavailable",
        ),
    ),
    Row(
        10,
        "a target rank hangs",
        "a watchdog ends the service",
        "within engine.hang_timeout_s and 5 s",
        (
            _FAILURES + "test_a_hung_rank_ends_the_service_within_its_timeout",
            _FAILURES + "test_a_hung_target_ends_the_service_within_its_timeout",
            _FAILURES + "test_a_service_that_was_paused_as_a_whole_goes_on",
            "tests/target_node/test_watchdog.py::test_only_a_loop_that_stands_still_ends_its_process",
        ),
    ),
    Row(
        11,
        "the engine's loop stands still while gRPC and HTTP live",
        "/livez and the health of gRPC say so, and recover with it",
        "within twice the period, a quarter of engine.hang_timeout_s",
        (_ENGINE + "test_probes_fail_while_the_engine_stands_still_and_recover",),
    ),
    Row(
        12,
        "kill -9 of the API process, the launcher, a target, the forkserver",
        "no process is left, ports are free",
        "0 left after 5 s; started again on the same ports",
        (
            _LIFETIME + "test_whoever_is_killed_leaves_no_process_and_no_port",
            _LIFE + "test_a_killed_launch_leaves_no_orphan_and_the_next_one_tidies_up",
            _KEEPER + "test_a_killed_supervisor_leaves_no_draft",
            _LAUNCH + "test_a_killed_api_process_ends_the_service",
            _LAUNCH + "test_a_killed_supervisor_leaves_no_orphan",
        ),
    ),
    Row(
        13,
        "SIGTERM under load",
        "unready first, what runs is finished, new requests get 503 and UNAVAILABLE",
        "0 dropped; exit code 0 within server.drain_timeout_s",
        (
            _LIFETIME + "test_a_drain_is_announced_then_refuses_and_finishes_what_runs",
            _FAILURES + "test_a_stop_signal_lets_running_requests_finish_and_exits_with_0",
            _ENDINGS + "test_draining_flips_health_refuses_the_new_and_finishes_the_running",
        ),
    ),
    Row(
        14,
        "a drain runs out of time; a second SIGTERM; SIGTERM while starting",
        "it ends, and streams end with an error",
        "5 s after each; nothing left",
        (
            _LIFETIME + "test_a_drain_that_runs_out_of_time_ends_streams_with_an_error",
            _LIFETIME + "test_a_service_that_is_stopped_while_it_starts_ends_at_once",
            _FAILURES + "test_a_second_stop_signal_cuts_running_requests_and_says_so",
            _LAUNCH + "test_a_third_signal_kills_at_once",
        ),
    ),
    Row(
        15,
        "10,000 clients cancel or leave at random",
        "target and draft process free what they held",
        "0 blocks held; freed in the next round",
        (
            "tests/service/test_cancels.py::test_random_cancels_and_disconnects_leak_nothing",
            _NODE + "test_an_abort_frees_everything_in_the_next_turn_and_is_idempotent",
            _NODE + "test_ten_thousand_random_cancels_leak_no_block",
            "tests/target_node/speculation/test_asynchronous.py::"
            "test_nothing_is_left_of_requests_that_ended_or_were_aborted",
            "tests/draft_node/test_node.py::test_a_stream_that_has_ended_is_forgotten",
            "tests/specserve/api/http/test_generation.py::test_who_leaves_is_aborted_at_once",
            _ENDINGS + "test_a_disconnected_client_is_aborted_within_100_ms",
        ),
    ),
    Row(
        16,
        "deadlines of 1 to 500 ms pass, of requests that wait and that run",
        "DEADLINE_EXCEEDED and 408, everything freed",
        "over by a round and 20 ms at most (99 %)",
        (
            _REQUESTS + "test_a_deadline_ends_a_request_that_waits_or_runs_and_frees_it",
            _HTTP + "test_a_deadline_has_a_status_before_and_an_event_within_an_answer",
            _NODE + "test_a_deadline_also_ends_a_request_that_never_ran",
        ),
    ),
    Row(
        17,
        "ten times as many requests as can be answered, in an open loop",
        "429 with Retry-After and RESOURCE_EXHAUSTED, the rest is served",
        "refused within 50 ms (99 %); tokens a second at least 0.9 times the peak; memory flat",
        (
            _REQUESTS + "test_ten_times_too_many_are_refused_at_once_and_the_rest_served",
            _HTTP + "test_a_full_service_refuses_before_it_reads_or_encodes_anything",
            "tests/specserve/api/test_pace.py::test_the_refused_are_told_one_after_the_other",
        ),
    ),
    Row(
        18,
        "nine KV blocks",
        "rows give way and are computed again; what can never fit is refused",
        "preemptions above 0, 0 wrong, no deadlock; 400 and INVALID_ARGUMENT",
        (
            "tests/reliability/test_preemption.py::"
            "test_nine_blocks_give_the_same_texts_by_giving_way",
            "tests/exactness/test_seeded_requests.py::"
            "test_equal_when_blocks_run_out_and_rows_are_preempted",
            "tests/target_node/test_scheduler.py::"
            "test_random_load_never_deadlocks_never_leaks_and_every_sequence_completes",
        ),
    ),
    Row(
        19,
        "clients stop reading",
        "a bounded buffer, then an end; others do not notice",
        "others wait 1.1 times as long for tokens at most (99 %)",
        (
            _REQUESTS + "test_who_does_not_read_holds_nobody_up",
            _HTTP + "test_who_lags_too_far_is_cut_off",
            _HTTP + "test_who_does_not_read_at_all_loses_the_connection",
            _ENDINGS + "test_a_reader_that_lags_too_far_is_cut_off_and_the_others_are_not",
        ),
    ),
    Row(
        20,
        "parameters beyond all bounds",
        "400 before the engine hears of them",
        "within 100 ms; the loop is held up by 50 ms at most",
        (_BOMBS + "test_a_parameter_bomb_is_refused_at_once",),
    ),
    Row(
        21,
        "bodies, headers, nesting, messages and cancels without end",
        "413, 431, 400, RESOURCE_EXHAUSTED",
        "memory grows by 50 MB at most",
        (
            _EXPOSURE + "test_what_is_too_large_takes_no_memory",
            _CHURN + "test_streams_that_are_cancelled_at_once_leave_nothing",
            _CHURN + "test_a_body_in_a_million_pieces_is_a_body",
            _LIMITS + "test_a_head_is_read_to_its_limit",
            _LIMITS + "test_a_body_of_a_gigabyte_is_refused_unread",
            _LIMITS + "test_deep_json_is_refused",
        ),
    ),
    Row(
        22,
        "a prompt of 10 MB",
        "encoded beside the loop, bounded",
        "/livez within 50 ms (99 %)",
        (_BOMBS + "test_a_text_of_ten_megabytes_is_refused_and_nobody_waits",),
    ),
    Row(
        23,
        "100,000 mutated frames at each port and socket",
        "no crash, no leak, no other text",
        "0 crashes; memory flat to 2 %",
        (
            _FRAMES + "test_mutated_frames_on_every_port_hurt_nobody",
            _FRAMES + "test_lies_that_are_soundly_sealed_end_no_process",
        ),
    ),
    Row(
        24,
        "pickles and code",
        "never executed",
        "0 executed",
        (_EXPOSURE + "test_nothing_that_is_sent_is_executed",),
    ),
    Row(
        25,
        "ports and sockets",
        "only the API's, the folder private",
        "0 others",
        (
            _EXPOSURE + "test_only_the_api_can_be_reached_from_elsewhere",
            _EXPOSURE + "test_its_own_sockets_are_in_a_folder_of_its_own",
        ),
    ),
    Row(
        26,
        "missing or odd keys",
        "401 and UNAUTHENTICATED on every path but probes and the empty page",
        "0 let in",
        (
            _KEYS + "test_no_path_answers_without_a_key",
            _KEYS + "test_no_request_hides_in_the_body_of_another",
            _GRPC_KEYS + "test_no_method_answers_without_a_key",
            _GRPC_KEYS + "test_no_path_in_disguise_answers_without_a_key",
            _EXPOSURE + "test_both_apis_serve_who_has_a_key_and_nobody_else",
        ),
    ),
    Row(
        27,
        "hostile checkpoints",
        "refused",
        "0 executed, memory bounded",
        (
            "tests/reliability/checkpoints/test_hostile_checkpoints.py::"
            "test_a_hostile_checkpoint_is_refused_in_one_line",
        ),
    ),
    Row(
        28,
        "another tenant's cache",
        "never reused",
        "0 hits; times tell nothing",
        (
            _SALTS + "test_prefixes_of_different_salts_are_never_shared",
            _SALTS + "test_time_does_not_tell_whether_another_salt_has_asked_before",
            _EXPOSURE + "test_no_tenant_finds_what_another_has_cached",
        ),
    ),
    Row(
        29,
        "ranks of the target disagree",
        "every rank computes the same in every round",
        "0 rounds whose hashes differ",
        (
            _ENGINE + "test_every_rank_computes_the_same_in_every_round",
            "tests/exactness/test_seeded_requests.py::test_equal_on_several_ranks",
        ),
    ),
    Row(
        30,
        "half an hour of random faults, on the real model",
        "all of the above at once",
        "0 failed, 0 wrong, 0 leaks; always alive",
        (
            "tests/reliability/test_soak.py::test_nothing_is_lost_or_leaked_in_a_time_of_random_faults",
        ),
    ),
]
