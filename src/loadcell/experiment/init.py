"""The specification that `loadcell init` writes: runs as it stands on its engine, and holds every key with what it means. Pure."""

from typing import Final, get_args

from loadcell.fleet.spec import EngineName

ENGINE_NAMES: Final[tuple[str, ...]] = get_args(EngineName)

# What is an engine's own: its keys, then its options.
_ENGINES: Final[dict[str, str]] = {
    "simulated": """\
model = "demo"                         # only a name here
# executable = "..."                   # the simulated engine is loadcell's own

[fleet.args]                           # options of `loadcell simulate`
ttft-ms = 20                           # without these two a model of continuous batching decides, see docs/simulate.md
itl-ms = 5
""",
    "vllm": """\
model = "/path/to/model"               # a path that does not exist is refused before anything starts; else a name on the hub
# executable = "/opt/vllm/bin/vllm"    # instead of the `vllm` on PATH; a list for several words

[fleet.args]                           # options of `vllm serve`, as it spells them
tensor-parallel-size = 1
# gpu-memory-utilization = 0.9
# enable-prefix-caching = true         # true: the flag alone; false: no flag
# speculative-config = { method = "mtp", num_speculative_tokens = 1 }   # a table becomes JSON
""",
    "sglang": """\
model = "/path/to/model"               # a path that does not exist is refused before anything starts; else a name on the hub
# executable = ["/opt/sglang/bin/python", "-m", "sglang.launch_server"] # instead of the one on PATH

[fleet.args]                           # options of `sglang.launch_server`, as it spells them
tp-size = 1
# mem-fraction-static = 0.85
""",
    "mindie": """\
model = "/path/to/model"
config-file = "/usr/local/Ascend/mindie/latest/mindie-service/conf/config.json"   # read and copied, never changed
# executable = "/usr/local/Ascend/mindie/latest/mindie-service/bin/mindieservice_daemon"

[fleet.config]                         # set in the copy: dotted path = value
"BackendConfig.ScheduleConfig.maxBatchSize" = 200
""",
    "command": """\
model = "demo"
command = ["my-server", "--port", "{port}", "--model", "{model}"]   # a template: {port} {host} {model} {devices} {name} {index}
health-path = "/health"                # what is asked to see whether it lives; without one: ready-pattern = "a text of its log"
""",
}

_TEMPLATE: Final = """\
# An experiment: services to start, loads to run against them, limits to hold them to.
#
#     loadcell check FILE      what would run; starts nothing
#     loadcell run FILE        start, run, report, stop
#     loadcell run FILE --set fleet.replicas=1 --set 'bench.concurrency=[1, 8]'     another value, this time
#     loadcell run FILE --env-file config.env                                       offers ${KEY} to the texts here; $${KEY} is the text itself
#
# Keys may be written with - or _. What stands behind # is not needed: it shows a default, or something that can be said.

name = "experiment"                    # names the run's folder: runs/<time>-experiment/
# seed = 0                             # fixes prompts, arrivals, and the order of further repeats
# repeats = 3                          # each scenario so often; all scenarios once, then all again
# shuffle = true                       # draw the order of scenarios in every repeat; false: never; left out: from the second repeat on
# gate = true                          # exit with 3 when a limit below is missed
# output-dir = "runs/mine"             # instead of runs/<time>-<name>

# [target]                             # services that run already: instead of [fleet], or for --skip-fleet
# base-url = ["http://127.0.0.1:30005", "http://127.0.0.1:30006"]

[fleet]
engine = "@ENGINE@"                    # vllm, sglang, mindie, simulated, command
@KEYS@
# served-model-name = "demo"           # what requests call the model
replicas = 2
port = "auto"                          # free ports; a number is the first one, the others follow
# devices-per-replica = 1              # left out: as the engine's own options tell
# devices = [0, 1, 2, 3]               # the pool to take from, or one list per replica: [[0, 1], [2, 3]]; left out: all that are found
# vendor = "auto"                      # nvidia, amd, ascend, none: which variable names a service its devices
# cpus = "apart"                       # the last CPU is the client's alone; any, or a list of CPUs for the services
# cwd = "."                            # the folder that services start in
# api = "chat"                         # or completions
# health-path = "/health"              # left out: the engine's own
# ready-pattern = "server is up"       # a regular expression: for engines that have no health path
# start-timeout = "1h"                 # until a service has answered one real request; 0: no limit
# stall-timeout = "20m"                # or until its log has said nothing new for so long
# ready-request-timeout = "5m"         # for that one request
# stop-timeout = "30s"                 # from the polite request to the kill
# restarts = 2                         # a service that dies is started again between scenarios, so often
# log-cap = "256MiB"                   # per service; the newest part is kept
@ARGS@
# cluster-file = "cluster.toml"        # instead of hosts below: the file of multihost_infer; true: the one that CLUSTER_CONFIG_PATH names

# [fleet.env]                          # variables for the services, over those of this shell
# OMP_NUM_THREADS = "8"

# [fleet.files]                        # written into each replica's folder: path = content; "{folder}/limits.json" in args names one
# "limits.json" = "{}"

# [[fleet.pattern]]                    # a line of a log that names why a service cannot go on, besides those known of the engine
# cause = "driver_fault"               # out_of_memory, bad_arguments, port_taken, missing_model, driver_fault, fatal
# pattern = "device is lost"           # a regular expression

# [[fleet.host]]                       # services elsewhere; left out: on this machine
# name = "node-a"                      # its alias in records and reports
# ssh = "node-a"                       # as for `ssh node-a`: your own configuration, keys and jump hosts hold; left out: this machine
# ssh-port = 22
# ssh-options = ["ProxyJump=bastion"]
# address = "10.0.0.1"                 # where its services are asked, when it differs
# nic = "eth0"                         # the network interface between hosts; left out: found
# devices = [0, 1]
# python = "python3"                   # the interpreter there that runs our agent
# docker = { container = "vllm", sudo = false }   # one that runs already; or { image = "vllm/vllm-openai", args = ["--ipc=host"] }

# [fleet.multi-host]                   # one service over all hosts; the first host is its head
# kind = "data_parallel"               # vLLM's own ranks, or ray: tensor and pipeline parallel
# devices-per-host = 8
# tensor-parallel-size = 2
# pipeline-parallel-size = 1
# data-parallel-size = 8               # left out: one rank per tensor-parallel-size devices
# data-parallel-rpc-port = 13345
# ray-port = 6379
# ray-executable = "ray"

[bench]                                # any flag of `loadcell bench`, for all scenarios; see docs/cli.md
num-prompts = "10x"                    # requests per unit of concurrency; a plain number is a number
warmup-requests = 4                    # before the clock starts; in no figure
# duration = 60                        # seconds; with num-prompts, the earlier one ends a scenario
# lb-strategy = "round_robin"          # over the replicas: round_robin, random, least_conn, ...
# ignore-eos = true

[[scenario]]                           # a list multiplies: these are four scenarios
concurrency = [1, 8]
input-len = [128, 512]
output-len = 64

# [[scenario]]                         # what is said here goes before what is said in [bench]
# name = "open-loop"                   # left out: made from what differs, such as c8-i512-o64
# request-rate = 4
# duration = 30
# num-prompts = 120
# input-len = 512
# slo = ["ttft p99 <= 1s"]             # besides those below; [] drops them all
# repeats = 1
# gate = false

[[slo]]
metric = "ttft"                        # ttft, tpot, itl, e2e, ...; docs/metrics.md has the formulas
statistic = "p95"
limit = "500ms"                        # with its unit

[[slo]]
metric = "success_rate"
limit = "99%"
"""


def template(engine: str) -> str:
    """A commented specification for `engine`."""
    keys, _, options = _ENGINES[engine].partition("\n[fleet.")
    args = f"\n[fleet.{options}" if options else ""
    return _TEMPLATE.replace("@ENGINE@", engine).replace("@KEYS@", keys.rstrip("\n")).replace("@ARGS@\n", f"{args}\n" if args else "\n")
