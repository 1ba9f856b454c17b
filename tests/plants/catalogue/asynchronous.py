"""Bugs of the target beside draft processes."""

from tests.plants.plant import Plant, Way

_ASYNC = frozenset({Way.ASYNC})
_DISTRIBUTION = "tests/exactness/test_asynchronous_distribution.py"
_IN_TIME = f"{_DISTRIBUTION}::test_throws_have_their_distribution[in time-rejection]"
_LINKS = "tests/target_node/speculation/test_draft_links.py"

PLANTS = [
    Plant(
        name="pushed-draft-probs-of-place-0",
        file="target_node/speculation/asynchronous.py",
        symbol="_probs_of",
        was="block.push.kept_probs[block.place, :length]",
        becomes="block.push.kept_probs[0, :length]",
        tests=(f"{_DISTRIBUTION}::test_throws_have_their_distribution[in time-rejection]",),
        breaks="every block of a push is verified by the probabilities of its first block",
        ways=_ASYNC,
    ),
    Plant(
        name="draft-probs-of-misses-first",
        file="target_node/speculation/asynchronous.py",
        symbol="AsynchronousSpeculation.draft_probs",
        was="for row in rows:",
        becomes="for row in sorted(rows, key=lambda row: row.sequence in self._blocks):",
        tests=(
            f"{_DISTRIBUTION}::test_throws_have_their_distribution[misses drafted here-rejection]",
        ),
        breaks="distributions of local drafts attach to rows that have a pushed block",
        ways=_ASYNC,
    ),
    # --- distributions that were pushed
    # -------------------------------------------------------------------
    Plant(
        name="pushed-draft-probs-flattened",
        file="target_node/speculation/asynchronous.py",
        symbol="_probs_of",
        was="return DraftProbs(ids.to(device, torch.int64), probs.to(device, copy=True))",
        becomes="""
            weights = (probs / probs.amax(dim=1, keepdim=True)).to(device).sqrt()
            return DraftProbs.of_entries(ids.to(device, torch.int64), weights)
        """,
        tests=(_IN_TIME,),
        breaks="pushed blocks are verified as if they had been drawn at another temperature",
        ways=_ASYNC,
    ),
    Plant(
        name="pushed-draft-probs-of-the-next-token",
        file="target_node/speculation/asynchronous.py",
        symbol="_probs_of",
        was="""
            ids = torch.as_tensor(block.push.kept_ids[block.place, :length])
            probs = torch.as_tensor(block.push.kept_probs[block.place, :length])
        """,
        becomes="""
            ids = torch.as_tensor(block.push.kept_ids[block.place, 1 : length + 1])
            probs = torch.as_tensor(block.push.kept_probs[block.place, 1 : length + 1])
        """,
        tests=(_IN_TIME,),
        breaks="a drafted token is verified by the probabilities of the one behind it",
        ways=_ASYNC,
    ),
    # --- what may decide whether a block is there ------------------------------------------------
    Plant(
        name="drawn-by-position-alone",
        file="draft_node/prespeculation/draft_batches.py",
        symbol="BatchDrafter._sampled",
        was="""
            rounds=[branch.key.round for branch in branches],
            branches=[self._branch_number(branch) for branch in branches],
        """,
        becomes="""
            rounds=[0] * len(branches),
            branches=[0] * len(branches),
        """,
        tests=(f"{_DISTRIBUTION}::test_throws_have_their_distribution[moody coins-rejection]",),
        breaks="round after round a position is drafted by noise that decided already",
        ways=_ASYNC,
    ),
    Plant(
        name="blocks-held-back-by-content",
        file="draft_node/prespeculation/prespeculation.py",
        symbol="PreSpeculation._send",
        was="if self._send_push is not None and not self._send_push(draft_batch.push()):",
        becomes="""
            kept = [each for each in draft_batch.blocks if each.token_ids[0] != each.key.anchor_id]
            draft_batch = type(draft_batch)(
                kept, draft_batch.drawn, draft_batch.draft_probs, draft_batch.seconds
            )
            if self._send_push is not None and kept and not self._send_push(draft_batch.push()):
        """,
        tests=(_IN_TIME,),
        breaks="a block that only repeats its anchor is not pushed, so repetitions are too rare",
        ways=_ASYNC,
    ),
    Plant(
        name="last-token-of-a-block-verified",
        file="target_node/speculation/asynchronous.py",
        symbol="AsynchronousSpeculation._usable",
        was="token_ids = block.token_ids[:-1]",
        becomes="token_ids = block.token_ids",
        tests=(
            "tests/target_node/speculation/test_asynchronous.py"
            "::test_the_last_token_of_a_block_is_never_verified",
        ),
        breaks="what follows a block that stands as a whole is never foreseen",
        ways=_ASYNC,
    ),
    # --- keys, rounds, epochs --------------------------------------------------------------------
    Plant(
        name="block-found-by-its-anchor",
        file="target_node/speculation/table.py",
        symbol="SpeculationTable.find",
        was="found = self._places.pop(key.stream, {}).get(key)",
        becomes="""
            places = self._places.pop(key.stream, {})
            found = {each.anchor_id: place for each, place in places.items()}.get(key.anchor_id)
        """,
        tests=(
            "tests/target_node/speculation/test_table.py::test_a_block_is_found_by_its_key_alone",
        ),
        breaks="a row verifies a block that was drafted for another outcome",
        ways=_ASYNC,
    ),
    Plant(
        name="blocks-of-any-round",
        file="target_node/speculation/table.py",
        symbol="SpeculationTable.add",
        was="if round_of(key.stream) != key.round:",
        becomes="if round_of(key.stream) is None:",
        tests=(
            "tests/target_node/speculation/test_table.py"
            "::test_only_blocks_of_the_coming_round_of_a_live_stream_are_kept",
        ),
        breaks="late blocks lie in the way of those in time, and late batches are not counted",
        ways=_ASYNC,
    ),
    Plant(
        name="epoch-used-again",
        file="target_node/speculation/draft_links.py",
        symbol="DraftLinks._attach",
        was="self._last_epoch += 1",
        becomes="self._last_epoch = 1 + max(each.epoch for each in self._peers)",
        tests=(f"{_LINKS}::test_every_attachment_has_an_epoch_of_its_own",),
        breaks="what a dead draft pushed counts as its successor's",
        ways=_ASYNC,
    ),
    Plant(
        name="the-dead-want-something",
        file="target_node/speculation/draft_links.py",
        symbol="DraftLinks._want",
        was="if peer is not None and peer.index == message.draft:",
        becomes="if message.epoch <= self._last_epoch:",
        tests=(f"{_LINKS}::test_only_the_living_may_want_something",),
        breaks="a dead draft's last wish is told to its successor",
        ways=_ASYNC,
    ),
    Plant(
        name="owner-of-a-request-by-number",
        file="target_node/speculation/draft_links.py",
        symbol="DraftLinks.peer_of",
        was="return max(attached, key=lambda peer: _rank_of(request_id, peer.index))",
        becomes="return attached[sum(request_id.encode()) % len(attached)]",
        tests=(f"{_LINKS}::test_requests_are_shared_out_and_only_those_of_a_dead_draft_move",),
        breaks="the death of one draft moves the requests of all others, who know nothing of them",
        ways=_ASYNC,
    ),
    Plant(
        name="successor-untold",
        file="target_node/speculation/link_streams.py",
        symbol="LinkStream.told_up_to",
        was="self.epoch, self.num_sent, self.knows_sampling = epoch, 0, False",
        becomes="self.epoch, self.knows_sampling = epoch, False",
        tests=(
            "tests/target_node/speculation/test_link_streams.py"
            "::test_what_was_told_to_one_attachment_is_unknown_to_the_next",
        ),
        breaks="a draft process that was started again never hears of texts before",
        ways=_ASYNC,
    ),
    Plant(
        name="fields-told-once",
        file="target_node/speculation/link_streams.py",
        symbol="LinkStream.told_up_to",
        was="self.epoch, self.num_sent, self.knows_sampling = epoch, 0, False",
        becomes="self.epoch, self.num_sent = epoch, 0",
        tests=(
            "tests/target_node/speculation/test_reporting.py"
            "::test_who_takes_a_drafts_place_is_told_of_fields_again",
        ),
        breaks="a draft process that was started again drafts without requests' penalties",
        ways=_ASYNC,
    ),
    Plant(
        name="sent-counts-the-anchor",
        file="target_node/speculation/reporting.py",
        symbol="OutcomeReports._send",
        was="each.stream.num_sent = max(each.stream.num_sent, each.end)",
        becomes="each.stream.num_sent = max(each.stream.num_sent, each.end + 1)",
        tests=(
            "tests/target_node/speculation/test_reporting.py"
            "::test_a_report_is_the_anchor_what_came_before_it_and_what_is_verified_now",
        ),
        breaks="features of every anchor are missing from what a draft is told",
        ways=_ASYNC,
    ),
    # --- drafts beside the target ----------------------------------------------------------------
    Plant(
        name="bonus-unforeseen",
        file="target_node/speculation/local_drafts.py",
        symbol="LocalDrafts.draft_top_k",
        was="scores = self._drafts[kind].scores(row.sequence, row.verify_len + 1)",
        becomes="scores = self._drafts[kind].scores(row.sequence, row.verify_len)",
        tests=(
            "tests/target_node/speculation/test_misses.py"
            "::test_a_miss_is_drafted_for_beside_the_target_and_what_follows_is_foreseen[coupled]",
        ),
        breaks="after a miss whose draft stands as a whole comes another miss",
        ways=_ASYNC,
    ),
    Plant(
        name="features-of-the-position-before",
        file="target_node/speculation/feature_cache.py",
        symbol="FeatureCache._slots",
        was="positions = np.arange(start, end)",
        becomes="positions = np.arange(start, end) - (start > 0)",
        tests=("tests/target_node/speculation/test_feature_cache.py",),
        breaks="drafters read the features of another position, and guess worse",
        ways=frozenset({Way.SYNC, Way.ASYNC}),
    ),
    Plant(
        name="miss-policy-deaf",
        file="target_node/speculation/miss_policy.py",
        symbol="MissPolicy.heard",
        was="self._silent_until_s = 0.0",
        becomes="self._silent_until_s = max(0.0, self._silent_until_s)",
        tests=(
            "tests/target_node/speculation/test_miss_policy.py"
            "::test_what_was_told_is_done_as_far_as_can_be[draft_now]",
        ),
        breaks="a draft that answers again is not waited for until a second has passed",
        ways=_ASYNC,
    ),
    Plant(
        name="blocks-of-older-rounds-stay",
        file="target_node/speculation/asynchronous.py",
        symbol="AsynchronousSpeculation.propose",
        was="self._blocks.clear()",
        becomes="self._hits.clear()",
        tests=(
            f"{_DISTRIBUTION}::test_throws_have_their_distribution[misses drafted here-rejection]",
        ),
        breaks="a local draft is verified by probabilities of a block pushed for an older round",
        ways=_ASYNC,
    ),
    Plant(
        name="draft-probs-before-saguaro",
        file="specserve/sampling/draft_sampler.py",
        symbol="Sampled._Draws.draw",
        was="""
            draft_probs = DraftProbs.of_entries(ids.flatten(0, 1), weights.flatten(0, 1))
            self.drawn_from.append(draft_probs)
        """,
        becomes="""
            draft_probs = DraftProbs.of_entries(ids.flatten(0, 1), weights.flatten(0, 1))
            uncut = torch.where(gaps < 0, gaps * self.scales, 0.0).exp_()
            self.drawn_from.append(
                DraftProbs.of_entries(ids.flatten(0, 1), uncut.flatten(0, 1))
            )
        """,
        tests=(f"{_DISTRIBUTION}::test_throws_have_their_distribution[saguaro-rejection]",),
        breaks="the distribution that is shipped is the drafter's own, not what was drawn from",
        ways=_ASYNC,
    ),
]
