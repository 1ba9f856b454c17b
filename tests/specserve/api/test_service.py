"""What front ends share: the state of one service."""

import asyncio

import pytest

from specserve.api.service import Service
from specserve.api.tokenizer import TextTokenizer
from specserve.errors import Unavailable
from specserve.settings.config import ResolvedConfig


def test_a_stop_while_loading_is_told_to_everybody_who_asks(tmp_path, model_folder):
    async def stop():
        service = Service(ResolvedConfig(), tmp_path, TextTokenizer(model_folder))
        waiting = asyncio.create_task(service.until_ready())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        service.hub.shut_down()
        with pytest.raises(Unavailable, match="the service has stopped"):
            _ = service.ready
        await service.close()

    asyncio.run(stop())
