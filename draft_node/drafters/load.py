"""From a folder to a `Drafter`: reads the config, checks every tensor, checks it fits the target.

No code that comes with a checkpoint is ever executed, and no pickle is read.
"""

import logging
from dataclasses import replace
from pathlib import Path

import torch

from draft_node.drafters.block_drafter import BlockDrafter
from draft_node.drafters.dialects import read_draft_spec
from draft_node.drafters.dspark import check_block_tensors, load_block_drafter
from draft_node.drafters.protocol import Drafter
from draft_node.drafters.spec import (
    BlockSpec,
    DraftSpec,
    Eagle3Spec,
    Layout,
    LocalHeadSpec,
)
from draft_node.drafters.weights import IGNORED, DraftWeights, TargetWeights
from specserve.errors import Unsupported
from specserve.model.checkpoint import Checkpoint

_LOG = logging.getLogger(__name__)
