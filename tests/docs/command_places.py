"""Where each command of README.md and docs/ is tried: run by a test, or parsed alone, and why.

A command that is in neither fails a test, and so does one here that no page shows any more.
"""

# Sent to a running service, whose address stands for the usual one.
ASKS = {
    "specserve generate --connect 127.0.0.1:7411 --json --max-tokens 32 --seed 7 'The licence'",
    "specserve generate --connect 127.0.0.1:7411 --max-tokens 32 --temperature 0 "
    "'The capital of France is'",
    "specserve generate --connect 127.0.0.1:7411 --json --max-tokens 32 --temperature 0 "
    "'one two three one two three one two'",
    "specserve chat --connect 127.0.0.1:7411",
    "specserve chat --connect 127.0.0.1:7411 --max-tokens 32",
    "specserve info --connect 127.0.0.1:7411",
    "specserve top",
    "specserve top --once",
    "specserve top --connect 127.0.0.1:7411 --once",
    "curl http://127.0.0.1:8000/v1/models",
    "curl http://127.0.0.1:8000/v1/chat/completions -d '"
    '{"messages": [{"role": "user", "content": "What is the capital of France?"}], '
    """"temperature": 0}'""",
    "curl http://127.0.0.1:8000/v1/chat/completions -d '"
    '{"messages": [{"role": "user", "content": "What is the capital of France?"}], '
    """"temperature": 0, "max_tokens": 32}'""",
}
# Starts the service that these are sent to.
ASKED = "specserve launch --target tiny"
# Run as they are, with ports of the system's choice; those that name no model serve the tiny one.
STARTS = {
    "specserve launch",  # of SmolLM2
    "specserve launch --topology 1+1 --speculation async",
}
# Resolved as at the start of a launch, with a real model in place of the reader's: its files are
# read, drafters are found, processes are placed. What then starts, starts above as well.
RESOLVES = {
    "specserve launch --target Qwen3-0.6B-Q8_0.gguf",
    "specserve launch --target ./Qwen3-0.6B",
    "specserve launch --speculation off",
    "specserve launch --speculation sync --drafter ngram",
    "specserve launch --topology 1+1",
    "specserve launch --topology 4+1 --oversubscribe",
    "specserve launch --speculation sync --drafter MODEL",
    "specserve launch --target smollm2 --topology 1+1 --speculation async --port 0 "
    "--log-level warning",
    "specserve launch --target smollm2 --port 7411 --no-http",
    "specserve launch --target smollm2 --port 7412 --no-http",
}
# Run by themselves.
ALONE = {
    "specserve info",
    "specserve info --target Qwen3-0.6B-Q8_0.gguf",
    "specserve generate 'The three laws of robotics are'",
}
# Run together, by the test of that page.
SECURITY = {
    "umask 077",
    "echo 'alice $(openssl rand -hex 24)'",
    "echo 'admin $(openssl rand -hex 24)'",
    "openssl req -x509 -newkey rsa:2048 -nodes -days 365 -keyout key.pem -out cert.pem "
    "-subj /CN=MACHINE -addext subjectAltName=DNS:MACHINE,IP:ADDRESS",
}
# Piped into what is asked.
PIPED = {"echo 'What is the capital of France?'"}

RUN = ASKS | {ASKED} | STARTS | RESOLVES | ALONE | SECURITY | PIPED

_INSTALLS = "installs packages from the index; what this tree has of it is read"
_AUDITS = "asks for minutes; tests/specserve/audit runs audits of fewer requests"
_TRAINS = (
    "takes minutes to hours; tests/draft_node and tests/specserve/test_train_command.py run the "
    "commands on less"
)
_MEASURES = "measures for minutes to hours; tests/bench run it on less"
_OTHERS = "a model or drafter that has to be fetched, of gigabytes"
_CORES = "needs more cores than a small machine has"
_MACHINES = "needs two machines; tests/service/test_hosts.py runs it on two network namespaces"
_NODES = "needs three machines; tests/service/test_draft_nodes.py runs it on one"
_PODMAN = "needs podman and the index; tests/docs/test_deploy.py reads the Containerfile"
_SYSTEMD = "changes the machine, as root; tests/docs/test_deploy.py reads the unit"
_KUBERNETES = "needs Kubernetes; tests/docs/test_deploy.py reads the manifests"
_GATEWAY = "a program of others, run by `python -m bench.clients.gateway`"

# By command, why it is parsed by its own parser and not run.
PARSED = {
    "make demo": f"{_INSTALLS}; tests/service/test_demo.py runs the demonstration",
    "make setup": _INSTALLS,
    "make test": "runs this test",
    "source .venv/bin/activate": "is the shell's, of an environment that is set up",
    "specserve audit --quick": _AUDITS,
    "specserve audit --quick --connect 127.0.0.1:7411": _AUDITS,
    "specserve profile": "measures for half a minute; tests/specserve/commands/test_profile.py "
    "runs it on the tiny model",
    "specserve profile --png steps.png": "the same",
    "python -m bench.configurations --num-prompts 8 --passes 2 --warm-up 10": _MEASURES,
    "python -m bench.sweep --quick": _MEASURES,
    "python -m bench.sweep --quick --out DIR": _MEASURES,
    "python -m bench.simulate --out bench/results/simulate --page docs/scaling.md": _MEASURES,
    "python -m bench.simulate --quick --out /tmp/simulated": _MEASURES,
    "python -m bench.simulate --parts bench/results/gpu/latest/results.json "
    "--page docs/scaling.md": "needs what a GPU has measured",
    "specserve launch --target Qwen/Qwen3-0.6B --threads 2": _OTHERS,
    "specserve launch --target Qwen3-8B --drafter dspark-8B --topology 1+1": _OTHERS,
    "specserve launch --target Qwen3-8B --drafter dflash-8B --local-head drafters/head": _OTHERS,
    "specserve launch --topology 2+0 --threads 4": _CORES,
    "specserve launch --target smollm2 --topology 1+1 --speculation async "
    "--draft-address 10.0.0.1:7500 --private-network": _NODES,
    "specserve launch --target smollm2 --topology 1+1 --speculation async "
    "--draft-address 10.0.0.2:7500 --private-network": _NODES,
    "specserve draft --target smollm2 --attach-to 10.0.0.1:7500,10.0.0.2:7500 "
    "--private-network": _NODES,
    "specserve launch --topology 2+1 --speculation async --nnodes 2 --node-rank 0 "
    "--rendezvous 10.0.0.1:29400 --private-network": _MACHINES,
    "specserve launch --topology 2+1 --speculation async --nnodes 2 --node-rank 1 "
    "--rendezvous 10.0.0.1:29400 --private-network": _MACHINES,
    "podman build -f docs/deploy/Containerfile -t specserve .": _PODMAN,
    "podman secret create specserve-keys keys": _PODMAN,
    "podman run --name specserve --secret specserve-keys,target=keys,uid=10001,mode=0400 "
    "--volume specserve-cache:/cache --publish 8000:8000 --publish 7411:7411 specserve": _PODMAN,
    "useradd --system --create-home specserve": _SYSTEMD,
    "install -D --owner specserve --mode 600 keys /etc/specserve/keys": _SYSTEMD,
    "cp docs/deploy/specserve.service /etc/systemd/system/": _SYSTEMD,
    "systemctl enable --now specserve": _SYSTEMD,
    "journalctl --unit specserve --follow": _SYSTEMD,
    "kubectl create secret generic specserve-keys --from-file=keys": _KUBERNETES,
    "kubectl apply -f docs/deploy/kubernetes/one-node.yaml": _KUBERNETES,
    "kubectl port-forward service/specserve 8000": _KUBERNETES,
    "curl http://127.0.0.1:8000/v1/models -H 'authorization: Bearer KEY'": _KUBERNETES,
    "serve run specserve.replicas:app replicas=2 "
    "'flags=--target smollm2 --topology 1+1 --speculation async'": "needs Ray; "
    "tests/specserve/test_replicas.py runs two replicas where it is installed",
    "pip install 'specserve[gateway]'": _INSTALLS,
    "python3 -m venv gateway": _INSTALLS,
    "gateway/bin/pip install smg": _INSTALLS,
    "gateway/bin/smg launch --host 127.0.0.1 --port 30000 --backend vllm "
    "--health-check-interval-secs 1 --worker-urls grpc://127.0.0.1:7411 grpc://127.0.0.1:7412": (
        _GATEWAY
    ),
    "curl http://127.0.0.1:30000/v1/chat/completions -H 'content-type: application/json' -d '"
    '{"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": '
    """"What is the capital of France?"}]}'""": _GATEWAY,
    "specserve train data --target MODEL --out chats --tokens 1000000": _TRAINS,
    "specserve train dspark --target MODEL --data chats --out drafters/mine": _TRAINS,
    "specserve calibrate --target MODEL --drafter drafters/mine --data chats": _TRAINS,
    "specserve launch --target MODEL --drafter drafters/mine": _TRAINS,
    "specserve train data --target smollm2 --out chats --tokens 20000": _TRAINS,
    "specserve train dspark --target smollm2 --data chats --out drafters/first --steps 20 "
    "--tokens-per-step 512": _TRAINS,
    "specserve calibrate --target smollm2 --drafter drafters/first --data chats "
    "--num-prompts 2 --num-tokens 16 --speed-prompts 2": _TRAINS,
    "specserve launch --target smollm2 --drafter drafters/first --speculation sync": _TRAINS,
    "specserve launch --target smollm2 --drafter drafters/first --topology 1+1 "
    "--speculation async": _TRAINS,
    "specserve calibrate --target tiny --drafter lm --out calibrations/lm": _TRAINS,
    "specserve calibrate --target tiny --drafter dspark --out calibrations/dspark": _TRAINS,
    "specserve train lm --target smollm2 --data draft_node/training/chats/smollm2 "
    "--cut 0 14 29 --draft-vocab 8192 --distill 1 --out drafters/cut": _TRAINS,
}
