"""A real gRPC server on a real socket, in a thread of its own, in front of a scripted target."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from specserve.api.__main__ import handle_line
from specserve.api.http.server import HttpServer
from specserve.api.server import GrpcServer
from specserve.api.service import Service
from specserve.api.tokenizer import TextTokenizer
from specserve.settings.config import (
    ModelConfig,
    Placement,
    ResolvedConfig,
    ServerConfig,
    TelemetryConfig,
)
from specserve.types import Request
from tests.specserve.api.scripted_target import STATS, ScriptedTarget, ready

CORPUS = ["the quick brown fox jumps over the lazy dog. STOP here, and go on.\n"] * 20
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if messages[0].content == 'refuse' %}"
    "{{ raise_exception('not this: ' ~ messages[0].content) }}{% endif %}"
    "assistant:"
)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny byte-level tokenizer; token 0 is <eos>; emoji take several tokens."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think more>", special=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


class Rig:
    """One service and its target; `call` runs a coroutine on the server's loop."""

    def __init__(
        self,
        folder: Path,
        control_dir: Path,
        server: ServerConfig,
        max_model_len: int,
        num_drafts: int,
        limits: dict[str, int],
        telemetry: TelemetryConfig,
    ) -> None:
        self.tokenizer = TextTokenizer(folder)
        self.text = "the quick 🦊 brown fox é — and go on, STOP here."
        vocab_size = 400  # some ids beyond the tokenizer's, as padded embeddings have
        self.target = ScriptedTarget(control_dir, ready(vocab_size, max_model_len), self._recite)
        self.reset()
        self._config = ResolvedConfig(
            model=ModelConfig(target=str(folder)),
            server=server,
            telemetry=telemetry,
            placements=tuple(
                Placement(role="draft", rank=rank, device="cpu") for rank in range(num_drafts)
            ),
        )
        self._control_dir, self._limits = control_dir, limits
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api loop")
        self._thread.start()
        self.call(self._start())

    def encode(self, text: str) -> list[int]:
        return asyncio.run(self.tokenizer.encode(text))

    def reset(self) -> None:
        self.script(self.text)
        self.target.script, self.target.per_round, self.target.round_s = self._recite, 1, 0.001
        self.target.stats = STATS
        self.target.origins, self.target.cache_hit, self.target.verify_len = (), None, 0
        self.target.messages.clear()
        self.target.is_idle = False

    def _recite(self, request: Request, sample_index: int) -> list[int]:
        return self.script_ids

    def script(self, text: str, *, eos: bool = True) -> None:
        self.script_ids = self.encode(text) + ([0] if eos else [])

    def call(self, work: Coroutine[Any, Any, Any], timeout_s: float = 20) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    async def _start(self) -> None:
        self.service = Service(self._config, self._control_dir, self.tokenizer, **self._limits)
        self.server = GrpcServer(self.service)
        self.http = HttpServer(self.service, 0)
        await self.server.start()
        await self.http.start()
        await self.service.until_ready()
        self.address, self.url = self.server.address, self.http.url

    async def _stop(self) -> None:
        self.service.hub.shut_down()
        await self.http.stop()
        await self.server.stop()

    def until(self, condition: Callable[[], bool], timeout_s: float = 5) -> float:
        """Wait for `condition`; seconds it took."""
        start_s = time.monotonic()
        while not condition():
            assert time.monotonic() - start_s < timeout_s, "condition not reached in time"
            time.sleep(0.001)
        return time.monotonic() - start_s

    def lose_target(self, how: str) -> None:
        if how == "silence":
            self.service.hub._silence_s = 0.2
            time.sleep(0.2)  # a wait that began before the change ends with the next frame
            self.target.freeze()
        elif how == "socket closed":
            self.target.close()
        else:
            line = b'{"event": "target_lost", "detail": "target rank 0 was killed by SIGKILL"}'
            self._loop.call_soon_threadsafe(handle_line, self.service, line)

    def close(self) -> None:
        self.call(self._stop())
        self.target.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def rigs_in(model_folder: Path, folder: Path) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(
        max_model_len: int = 512,
        num_drafts: int = 0,
        max_queued_requests: int = 1024,
        lenient: bool = False,
        otlp_endpoint: str | None = None,
        door: dict[str, Any] | None = None,
        **limits: int,
    ) -> Rig:
        """`door`: what of `ServerConfig` decides who gets in; `limits`: those of `Service`."""
        control_dir = folder / f"control{len(rigs)}"
        control_dir.mkdir(mode=0o700)
        server = ServerConfig(
            grpc_port=0, max_queued_requests=max_queued_requests, lenient=lenient, **(door or {})
        )
        telemetry = TelemetryConfig(otlp_endpoint=otlp_endpoint)
        rigs.append(
            Rig(model_folder, control_dir, server, max_model_len, num_drafts, limits, telemetry)
        )
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture
def make_rig(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """For tests that configure, drain or break their service."""
    with rigs_in(model_folder, tmp_path) as make:
        yield make


@pytest.fixture(scope="session")
def shared_rig(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigs_in(model_folder, tmp_path_factory.mktemp("rig")) as make:
        yield make()


@pytest.fixture
def rig(shared_rig: Rig) -> Iterator[Rig]:
    """The shared service, in its first state, and with nothing left over after every test."""
    shared_rig.reset()
    yield shared_rig
    shared_rig.until(lambda: shared_rig.service.hub.num_in_flight == 0)
    shared_rig.until(lambda: shared_rig.target.num_live == 0)
