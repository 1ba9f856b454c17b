"""The configuration: one file, then flags, checked."""

import pytest

from specserve.errors import InvalidField
from specserve.noise import OnceKeys
from specserve.settings.config import (
    MAX_SAMPLES,
    Config,
    EngineConfig,
    ModelConfig,
    load_config,
    parse_override,
)


def test_overrides_win_over_the_file(tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text('[engine]\nmax_batch_tokens = 32\nmax_batch_rows = 8\n[model]\nname = "a"\n')
    config = load_config(path, {"engine.max_batch_tokens": "64", "engine.prefix_cache": "false"})
    assert config.engine == EngineConfig(max_batch_tokens=64, max_batch_rows=8, prefix_cache=False)
    assert config.model == ModelConfig(name="a")


def test_a_number_stays_text_where_text_is_wanted():
    assert load_config(None, {"model.name": "123"}).model.name == "123"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"engine.prefix_cach": "1"},
            "engine.prefix_cach: is no known key (nearest: engine.prefix_cache)",
        ),
        ({"engin.kv_memory": "1"}, "engin: is no known section (nearest: engine)"),
        ({"engine": "1"}, "engine: is not of the form section.key"),
        ({"speculation.fan_out": "0"}, "speculation.fan_out: expected int from 1 to 1024, got 0"),
        (
            {"speculation.fan_out": "many"},
            "speculation.fan_out: expected int from 1 to 1024, got 'many'",
        ),
        (
            {"engine.max_batch_rows": "999999999999999999999"},
            "engine.max_batch_rows: expected int from 1 to 4096, got 999999999999999999999",
        ),
        (
            {"engine.max_batch_tokens": "1e30"},
            "engine.max_batch_tokens: expected int from 1 to 1048576, got 1e30",
        ),
        ({"topology.threads": "-1"}, "topology.threads: expected int of at least 1, got -1"),
        (
            {"topology.oversubscribe": "maybe"},
            "topology.oversubscribe: expected true or false, got 'maybe'",
        ),
        (
            {"server.grpc_port": "70000"},
            "server.grpc_port: expected int from 0 to 65535, got 70000",
        ),
        (
            {"server.drain_timeout_s": "nan"},
            "server.drain_timeout_s: expected float from 0 to 86400, got nan",
        ),
    ],
)
def test_a_wrong_setting_is_named_on_one_line(overrides, message):
    with pytest.raises(InvalidField) as caught:
        load_config(None, overrides)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "key",
    [
        "model.target", "model.name", "model.dtype", "speculation.drafter",
        "speculation.colocated_drafter", "speculation.local_head",
    ],
)  # fmt: skip
def test_nothing_is_no_name(key):
    """Nobody who gives a name means the current folder, or the default."""
    with pytest.raises(InvalidField) as caught:
        load_config(None, {key: ""})
    assert str(caught.value) == f"{key}: expected text that is not empty, got ''"


def test_every_sample_that_may_be_asked_for_has_noise_of_its_own():
    OnceKeys.build([0], [MAX_SAMPLES - 1], [0], [0], [0])
    with pytest.raises(ValueError, match="sample index"):
        OnceKeys.build([0], [MAX_SAMPLES], [0], [0], [0])


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    path = tmp_path / "serve.toml"
    path.write_bytes(b"\xef\xbb\xbf[engine]\nmax_batch_rows = 32\n")
    assert load_config(path, {}).engine.max_batch_rows == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[engine\n", "is not valid TOML"),
        ("[speculation]\nfan_out = true\n", "fan_out: expected int from 1 to 1024, got true"),
        ('[speculation]\nfan_out = "16"\n', "fan_out: expected int from 1 to 1024, got '16'"),
        ("[model]\nname = 16\n", "model.name: expected text that is not empty, got 16"),
        ("engine = 3\n", "engine: expected a section, got 3"),
        ("[topolgy]\n", "topolgy: is no known section (nearest: topology)"),
        ("port = 3\n", "port: stands in no section (nearest: server.grpc_port, which is grpc_port"),
        ('kv_memory = "1GiB"\n', "(nearest: engine.kv_memory, which is kv_memory under [engine])"),
        ("gama = 3\n", "gama: stands in no section (nearest: speculation.gamma,"),
        (
            "max_num_seqs = 3\n",
            "(nearest: engine.max_batch_rows, which is max_batch_rows",
        ),
        ("[server]\nport = 3\n", "server.port: is no known key (nearest: server.grpc_port)"),
        (
            '[engine]\ndrafter = "x"\n',
            "engine.drafter: is no known key (nearest: spec",
        ),
        ("[topology]\ntp = 2\n", "topology.tp: is no known key (nearest: topology.topology)"),
    ],
)
def test_a_wrong_file_is_named_on_one_line(tmp_path, text, message):
    path = tmp_path / "serve.toml"
    path.write_text(text)
    with pytest.raises(InvalidField) as caught:
        load_config(path, {})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidField, match=r"--config: cannot read .*none\.toml"):
        load_config(tmp_path / "none.toml", {})


def test_an_assignment_without_a_key_is_refused():
    assert parse_override("model.name=a=b") == ("model.name", "a=b")
    assert parse_override("speculation.min_survival=.25")[1] == "0.25"
    assert parse_override("model.target=./2")[1] == "./2"
    with pytest.raises(InvalidField, match=r"--set: .*\(nearest: model\.name=a\)"):
        parse_override("name=a")
    with pytest.raises(InvalidField, match=r"--set: .*\(nearest: server\.grpc_port=3\)"):
        parse_override("port=3")


def test_the_configuration_is_frozen():
    with pytest.raises(AttributeError):
        Config().engine.max_batch_rows = 3  # type: ignore[misc]
