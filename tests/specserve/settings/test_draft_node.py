"""What `specserve draft` goes by, and what services say of draft nodes from elsewhere."""

import socket

import pytest

from specserve.commands.config_table import config_rows
from specserve.errors import InvalidField, Unsupported
from specserve.processes.launch import plan_children
from specserve.settings.config import ResolvedConfig, TopologyConfig, load_config
from specserve.settings.draft_node import (
    MOST_TARGETS,
    as_launched,
    parse_targets,
    resolve_draft_node,
)
from specserve.settings.hosts import check_hosts, require_draft_address
from specserve.settings.topology import parse_topology
from tests.specserve.settings.resolving import FOLDER, SPEC, machine, resolved

PLACE = "127.0.0.1:7500"


def draft_node(hardware, **settings: str) -> ResolvedConfig:
    wish = load_config(None, {key.replace("__", "."): value for key, value in settings.items()})
    launched = as_launched(wish, hardware)
    from specserve.settings.resolve import resolve

    return resolve_draft_node(wish, resolve(launched, hardware, SPEC, FOLDER), hardware, (PLACE,))
