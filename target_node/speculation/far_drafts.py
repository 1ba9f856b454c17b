"""Where draft processes of other machines and other launches attach to a target leader.

Those of its own launch find the place in node 0's store. Draft nodes that serve several targets are
told it where they are started, and have to go by what this target goes by.
"""

from pathlib import Path

import zmq

from specserve.errors import InvalidField
from specserve.settings.agreement import MAX_POSITIONS, agreed_with_drafts, difference
from specserve.settings.config import ResolvedConfig
from specserve.settings.hosts import reach
from specserve.transport.control.draft_control import Attach
from specserve.transport.link.frames import LinkLimits
from specserve.transport.network_link.hub import DraftHub
from specserve.transport.network_link.open_hub import Objection, OpenDraftHub
from specserve.transport.rendezvous import DRAFT_HUB, open_store


def open_hub(config: ResolvedConfig, limits: LinkLimits) -> DraftHub:
    """For `config.far_drafts`, of which there are some.

    Raises InvalidField for an address that nobody can listen on, Unavailable without node 0.
    """
    wish = config.topology.draft_address
    if wish is None:
        hub = DraftHub(config.hosts[0], config.far_drafts, config.message_cores)
        open_store(config).set(DRAFT_HUB, hub.place)
        return hub
    key = "topology.draft_address"
    place = reach(wish, key, is_private=config.topology.private_network)
    try:
        return OpenDraftHub(
            place.address,
            place.port,
            len(config.far_drafts),
            _objection(config, limits, wish),
            silence_s=config.speculation.draft_timeout_s,
            cores=config.message_cores,
        )
    except zmq.ZMQError as error:
        problem = f"cannot listen on {wish}: {error.strerror}; type an address of this machine"
        raise InvalidField(key, f"{problem} and a free port") from error


def _objection(config: ResolvedConfig, limits: LinkLimits, wish: str) -> Objection:
    ours = agreed_with_drafts(
        Path(config.model.target or ""),
        config.speculation,
        feature_size=limits.feature_size,
        gamma=limits.gamma,
    )
    here, there = f"the target at {wish}", "the draft node"

    def objection(attach: Attach) -> str | None:
        theirs = dict(attach.agreed)
        most = theirs.pop(MAX_POSITIONS, "0")
        if (found := difference(ours, theirs, here, there)) is not None:
            return str(found)
        if not most.isdecimal() or int(most) < limits.max_positions:
            problem = f"{most} tokens on {there}, {limits.max_positions} on {here}; start the "
            return f"{MAX_POSITIONS}: {problem}draft node with --max-model-len and more --kv-memory"
        return None

    return objection
