"""The committed stubs are what the proto gives."""

from pathlib import Path

import pytest

from specserve.api import generate_stubs, grpc_gen

pytest.importorskip("grpc_tools", reason="needs the dev extra")


def test_committed_stubs_are_what_the_proto_gives(tmp_path):
    committed = Path(grpc_gen.__file__).parent
    generated = generate_stubs.generate(tmp_path / "grpc_gen")
    assert {path.name for path in generated} == {
        path.name for path in committed.iterdir() if path.suffix in (".py", ".pyi")
    }
    for path in generated:
        assert path.read_bytes() == (committed / path.name).read_bytes(), (
            f"{path.name} is stale: run python -m specserve.api.generate_stubs"
        )


def test_a_changed_proto_gives_other_stubs(tmp_path):
    source = Path("proto/specserve/v1/generation.proto")
    target = tmp_path / "proto" / "specserve" / "v1" / "generation.proto"
    target.parent.mkdir(parents=True)
    target.write_text(source.read_text().replace("bool draining = 13", "bool is_draining = 13"))
    generated = generate_stubs.generate(tmp_path / "out", tmp_path / "proto")
    texts = [path.read_text() for path in generated]
    assert any("is_draining" in text for text in texts)
