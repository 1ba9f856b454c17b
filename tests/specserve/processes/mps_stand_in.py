"""A control daemon of NVIDIA MPS that is a script on PATH, and misbehaves as it is told.

It keeps to what the real one does for its caller: `-d` comes back once the daemon runs, a file has
its pid, commands are read from stdin, and a server is started when a process wants one.
"""

from pathlib import Path

import pytest

CONTROL = "nvidia-cuda-mps-control"
MANNERS = ("sound", "refuses", "hangs", "dies", "silent", "stays", "deaf")
_SCRIPT = """#!/bin/bash
manner={manner}
folder="$CUDA_MPS_PIPE_DIRECTORY"
mine="$folder/{control}.pid"
case "$1" in
-d)
    [ $manner = refuses ] && {{ echo "An instance of this daemon is already running"; exit 1; }}
    [ $manner = hangs ] && while :; do sleep 0.1; done
    "$0" --daemon &
    [ $manner = dies ] && {{ wait; exit 0; }}
    while [ -e "$folder" ] && [ ! -e "$mine" ]; do sleep 0.01; done ;;
--daemon)
    echo $$ > "$mine"
    [ $manner = dies ] && exit 1
    "$0" --nvidia-cuda-mps-server &
    [ $manner = silent ] || echo $! > "$folder/servers"
    while [ ! -e "$folder/is_over" ]; do sleep 0.01; done
    kill %1
    rm "$mine" ;;
--nvidia-cuda-mps-server)
    trap 'exit 0' TERM
    while :; do sleep 0.01; done ;;
*)
    read -r command
    kill -0 "$(cat "$mine")" || exit 1
    case $command in
    get_server_list) cat "$folder/servers" 2> /dev/null; true ;;
    quit)
        [ $manner = deaf ] && while :; do sleep 0.1; done
        [ $manner = stays ] || touch "$folder/is_over" ;;
    esac ;;
esac
"""


def put_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path, manner: str = "sound") -> None:
    """Ahead of everything else that is there."""
    assert manner in MANNERS
    folder.mkdir()
    script = folder / CONTROL
    script.write_text(_SCRIPT.format(manner=manner, control=CONTROL))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def left(folder: Path) -> set[str]:
    """Command lines of its processes that still run.

    Each once: a shell that is about to sleep is two of the same for a moment.
    """
    found = set[str]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(str(folder) in word for word in words):
            found.add(" ".join(words))
    return found
