"""Every flag of a load, in the order in which they are explained. The command line, the Python API and docs/cli.md are made from it."""

from typing import Any, Final, get_args

from msgspec.structs import replace

from loadcell.client.limits import Timeouts
from loadcell.endpoint.spec import EndpointSpec, Strategy
from loadcell.flags.flag import Flag, finite, not_negative, port, positive, rate, workers
from loadcell.schedule import Arrival
from loadcell.workload.spec import DatasetName, Distribution

_LIMITS: Final = Timeouts()
_BALANCE: Final = EndpointSpec()

_TARGET: Final = (
    Flag(
        "base_url",
        "texts",
        "Base URL of a service; repeat it (or list several) for several. Any path prefix, IPv6, https. A URL without a path means /v1.",
        metavar="URL",
    ),
    Flag(
        "host",
        "text",
        "Host of the services, with --port or --ports. An address to listen on (0.0.0.0, ::) is asked at loopback.",
        default="127.0.0.1",
    ),
    Flag("port", "int", "Port of one service.", default=8000, check=port),
    Flag("ports", "text", "Ports of several services on --host, separated by commas: 30005,30006.", metavar="LIST"),
    Flag(
        "endpoint", "text", "Path appended to the base URL as it stands, with no /v1 of ours.", shown="/v1/chat/completions", metavar="PATH"
    ),
    Flag(
        "endpoint_type",
        "text",
        "The API that is asked: chat or completions (also by the names of --backend).",
        shown="chat",
        metavar="chat|completions",
        choices=("chat", "completions", "openai-chat", "openai", "vllm"),
    ),
    Flag(
        "backend",
        "text",
        "The API by the names of vllm bench serve: openai-chat is chat, openai and vllm are completions.",
        shown="openai-chat",
        metavar="openai-chat|openai|vllm",
        choices=("openai-chat", "openai", "vllm"),
    ),
    Flag("model", "text", "Model to ask for.", shown="the first of /v1/models", metavar="NAME"),
    Flag("served_model_name", "text", "Name of the model in requests, where it differs from --model.", shown="--model", metavar="NAME"),
    Flag(
        "header", "texts", "Headers for every request, KEY=VALUE or 'Key: value'. Their values never reach a file.", metavar="KEY=VALUE..."
    ),
    Flag(
        "api_key_env",
        "text",
        "Environment variable that holds the key. Unset or empty: no Authorization header.",
        default="OPENAI_API_KEY",
        metavar="NAME",
    ),
    Flag("ca_file", "text", "PEM file of certificate authorities to trust instead of the system's.", metavar="FILE"),
    Flag("insecure", "switch", "Do not verify certificates. Said in the report.", default=False),
    Flag("proxy", "text", "HTTP proxy for what is not loopback. The environment's proxies are never used.", shown="none", metavar="URL"),
    Flag(
        "ready_check_timeout_sec",
        "float",
        "Wait up to this many seconds until every service answers, before the clock starts. 0: do not wait.",
        default=0.0,
        check=not_negative,
        metavar="SECONDS",
    ),
)

_LOAD: Final = (
    Flag(
        "concurrency",
        "int",
        "Requests in flight. Alone: closed loop. With --request-rate: a cap over an open loop, and the queue delay is shown.",
        shown="unlimited",
        metavar="N",
        words={"unlimited": None},
        check=positive,
    ),
    Flag("request_rate", "float", "Requests per second (open loop). inf: not paced.", shown="inf", metavar="RATE", check=rate),
    Flag(
        "arrival",
        "text",
        "How the gaps between arrivals are drawn.",
        shown="poisson, gamma where --burstiness is not 1",
        choices=get_args(Arrival),
    ),
    Flag("burstiness", "float", "Shape of the gamma distribution of gaps: 1 is Poisson, below 1 burstier, above 1 more even.", default=1.0),
    Flag(
        "ramp_up_strategy",
        "text",
        "Let the rate grow from --ramp-up-start-rps to --ramp-up-end-rps over the run.",
        choices=("linear", "exponential"),
    ),
    Flag("ramp_up_start_rps", "float", "Rate at the start of the ramp.", check=not_negative, metavar="RATE"),
    Flag("ramp_up_end_rps", "float", "Rate at the end of the ramp.", check=positive, metavar="RATE"),
    Flag(
        "ramp_concurrency",
        "float",
        "Seconds over which a closed loop grows from 1 to --concurrency.",
        default=0.0,
        check=not_negative,
        metavar="SECONDS",
    ),
    Flag("steps", "text", "Rates one after another, RATE:SECONDS separated by commas: 2:30,4:30,8:30.", metavar="LIST"),
    Flag(
        "burst_size", "int", "Requests that arrive together; --request-rate still counts requests.", default=1, check=positive, metavar="N"
    ),
    Flag(
        "trace",
        "text",
        "File of arrival times: one offset in seconds a line, or JSON lines with `timestamp` in milliseconds.",
        shown="the data set's own, for mooncake without another load",
        metavar="FILE",
    ),
    Flag(
        "num_prompts",
        "int",
        "Requests to send, warm-up apart.",
        shown="1000; no limit with --duration, the trace's length with a trace",
        metavar="N",
        check=positive,
    ),
    Flag(
        "duration",
        "float",
        "Seconds after which no request is sent any more. With --num-prompts the earlier one ends the run.",
        shown="no limit",
        check=positive,
        metavar="SECONDS",
    ),
    Flag(
        "warmup_requests",
        "int",
        "Requests sent before the clock starts, with prompts of their own, in no figure.",
        default=0,
        check=not_negative,
        metavar="N",
    ),
    Flag(
        "warmup_duration",
        "float",
        "Seconds of load before the clock starts, in no figure.",
        default=0.0,
        check=not_negative,
        metavar="SECONDS",
    ),
    Flag(
        "workers",
        "int",
        "Processes that send the load. More than one only where one core does not carry it.",
        default=1,
        check=workers,
        metavar="N",
    ),
    Flag("max_failures", "int", "Stop the run after this many failed requests.", shown="no limit", check=positive, metavar="N"),
    Flag(
        "seed",
        "int",
        "Fixes prompts, lengths and arrivals. One that was used before repeats its prompts, which a server may have cached.",
        default=0,
        shown="a new one each run, recorded; 0 with --cell, --repeat or --same-prompts",
    ),
)

_WORKLOAD: Final = (
    Flag("dataset_name", "text", "Where prompts come from.", default="random", choices=get_args(DatasetName)),
    Flag(
        "dataset_path",
        "text",
        "The data set: ShareGPT's JSON, JSON lines with `prompt` or `messages`, or a Mooncake trace.",
        metavar="FILE",
    ),
    Flag("input_len", "int", "Tokens of a random prompt.", default=1024, check=not_negative, dataset="random", metavar="N"),
    Flag(
        "output_len",
        "int",
        "Tokens to ask for.",
        shown="128 for random, 256 for custom rows without one, else the data set's own",
        check=positive,
        metavar="N",
    ),
    Flag(
        "range_ratio",
        "text",
        'Lengths uniform in [len*(1-r), len*(1+r)]; as JSON for each: \'{"input": 0.1, "output": 0.5}\'.',
        default="0",
        dataset="random",
        metavar="R",
    ),
    Flag(
        "input_dist",
        "text",
        "Distribution of prompt lengths with mean --input-len.",
        default="fixed",
        choices=get_args(Distribution),
        dataset="random",
    ),
    Flag(
        "output_dist",
        "text",
        "Distribution of output lengths with mean --output-len.",
        default="fixed",
        choices=get_args(Distribution),
        dataset="random",
    ),
    Flag(
        "dist_spread",
        "float",
        "Standard deviation of these lengths, as a fraction of their mean.",
        default=0.3,
        check=positive,
        dataset="random",
        metavar="R",
    ),
    Flag(
        "prefix_len",
        "int",
        "Tokens that the prompts of a prefix group share, before the random ones.",
        default=0,
        check=not_negative,
        dataset="random",
        metavar="N",
    ),
    Flag("prefix_groups", "int", "Number of prefix groups.", default=1, check=positive, dataset="random", metavar="N"),
    Flag(
        "tokenizer",
        "text",
        "A tokenizer.json or its folder; 'server' for the service's /tokenize; 'words' for the estimate by words.",
        default="auto",
        shown="auto: server if it answers, else words",
        metavar="PATH|server|words",
    ),
    Flag("cell", "text", "Name of this cell of an experiment: cells draw different prompts from one seed.", metavar="NAME"),
    Flag(
        "repeat", "int", "Number of this repetition: repetitions draw different prompts, too.", default=0, check=not_negative, metavar="N"
    ),
    Flag(
        "same_prompts", "switch", "Draw the same prompts in every cell and repetition (measures the server's prefix cache).", default=False
    ),
    Flag(
        "reuse",
        "switch",
        "Read a data set smaller than the run again from its start, and say so. Off: refuse the run.",
        default=True,
        off=("no-reuse",),
    ),
    Flag("shuffle", "switch", "Read the data set in an order drawn from the seed.", default=False, off=("no-shuffle", "disable-shuffle")),
    Flag(
        "max_model_len",
        "int",
        "Context length of the model; rows whose prompt and output exceed it are handled by --oversize.",
        shown="not checked",
        check=positive,
        metavar="N",
    ),
    Flag(
        "oversize",
        "text",
        "What becomes of rows that exceed --max-model-len; counted in the report.",
        default="skip",
        choices=("skip", "cap", "keep"),
    ),
)

_SAMPLING: Final = (
    Flag("stream", "switch", "Ask for streamed answers.", default=True, off=("no-stream",)),
    Flag(
        "temperature",
        "float",
        "Sampling temperature; 'server' leaves it to the server.",
        default=0.0,
        words={"server": None},
        check=not_negative,
    ),
    Flag("top_p", "float", "Nucleus sampling.", shown="the server's", check=positive),
    Flag("top_k", "int", "Top-k sampling.", shown="the server's"),
    Flag("min_p", "float", "Min-p sampling.", shown="the server's", check=not_negative),
    Flag("frequency_penalty", "float", "Frequency penalty.", shown="the server's", check=finite),
    Flag("presence_penalty", "float", "Presence penalty.", shown="the server's", check=finite),
    Flag("repetition_penalty", "float", "Repetition penalty.", shown="the server's", check=positive),
    Flag(
        "ignore_eos",
        "switch",
        "Generate to the length asked for. Dropped once, and said, where a server refuses it.",
        shown="on for random prompts",
        off=("no-ignore-eos",),
    ),
    Flag("min_tokens", "int", "Least number of tokens to generate.", shown="not sent", check=not_negative, metavar="N"),
    Flag("max_tokens_field", "text", "Name of the field that carries the output length.", default="max_tokens", metavar="NAME"),
    Flag("extra_body", "object", "JSON object merged into every request body.", metavar="JSON"),
)

_BALANCING: Final = (
    Flag("lb_strategy", "text", "How a request's service is chosen.", default=_BALANCE.strategy, choices=get_args(Strategy)),
    Flag(
        "request_max_retries",
        "int",
        "Further attempts of a failed request, at another service.",
        shown="2 with several services, 0 with one",
        check=not_negative,
        metavar="N",
    ),
    Flag(
        "health_path", "text", "Path of the light GET that asks whether a service is alive.", default=_BALANCE.health_path, metavar="PATH"
    ),
    Flag(
        "health_check_interval",
        "float",
        "Seconds between probes. 0: no probes at all.",
        default=_BALANCE.health_check_interval_s,
        check=not_negative,
        metavar="SECONDS",
    ),
    Flag(
        "health_timeout",
        "float",
        "Seconds after which a probe without an answer has failed.",
        default=_BALANCE.health_timeout_s,
        check=positive,
        metavar="SECONDS",
    ),
    Flag(
        "health_max_failures",
        "int",
        "Failures in a row that make a service unhealthy.",
        default=_BALANCE.health_max_failures,
        check=positive,
        metavar="N",
    ),
    Flag(
        "health_recovery_interval",
        "float",
        "Seconds after which an unhealthy service is tried again.",
        default=_BALANCE.health_recovery_interval_s,
        check=positive,
        metavar="SECONDS",
    ),
    Flag(
        "patience",
        "float",
        "Seconds for which all services may be down before the run ends.",
        default=_BALANCE.patience_s,
        check=positive,
        metavar="SECONDS",
    ),
)

_TIMEOUTS: Final = (
    Flag("connect_timeout", "float", "Seconds to connect.", default=_LIMITS.connect_s, check=positive, metavar="SECONDS"),
    Flag(
        "first_byte_timeout",
        "float",
        "Seconds from the request to its first output; headers do not count. Without streaming: to the whole answer.",
        default=_LIMITS.first_output_s,
        check=positive,
        metavar="SECONDS",
    ),
    Flag("idle_timeout", "float", "Seconds without output after the first.", default=_LIMITS.idle_s, check=positive, metavar="SECONDS"),
    Flag("total_timeout", "float", "Seconds for a whole attempt.", default=_LIMITS.total_s, check=positive, metavar="SECONDS"),
    Flag(
        "drain_timeout",
        "float",
        "Seconds for which requests in flight may go on after --duration.",
        default=60.0,
        check=not_negative,
        metavar="SECONDS",
    ),
)

_LIMIT: Final = (
    Flag("slo", "texts", "A limit on a statistic, such as 'ttft p95 <= 200ms'; repeat it for several.", metavar="LIMIT"),
    Flag(
        "goodput", "texts", "Limits that a request must meet to count as good, in ms: ttft:200 tpot:50 e2el:9000.", metavar="METRIC:MS..."
    ),
    Flag("devices", "int", "Devices of all services together, for figures per device.", shown="unknown", check=positive, metavar="N"),
    Flag("gate", "switch", "Exit with 3 when an --slo is missed.", default=False),
    Flag("strict", "switch", "Exit with 1 when the run is SUSPECT, too.", default=False),
)

_OUTPUT: Final = (
    Flag("output_dir", "text", "Folder of this run; must not hold a run yet.", shown="runs/<time>-<name>", metavar="DIR"),
    Flag("name", "text", "Name of the run.", default="bench"),
    Flag(
        "output_file", "text", "Also write the multi-service bench client's JSON lines: one per request, then the summary.", metavar="FILE"
    ),
    Flag("overwrite", "switch", "Replace an existing --output-file.", default=False),
    Flag("save_text", "switch", "Keep the answers' texts in the records.", default=False),
    Flag("save_result", "switch", "Also write the JSON of vllm bench serve.", default=False),
    Flag("save_detailed", "switch", "With --save-result: each request's figures, too.", default=False),
    Flag("append_result", "switch", "Append that JSON to the file instead of starting it anew.", default=False),
    Flag("result_dir", "text", "Folder of that JSON.", shown="the current one", metavar="DIR"),
    Flag("result_filename", "text", "Name of that JSON.", shown="{label}-{request_rate}qps-{model}-{time}.json", metavar="FILE"),
    Flag("percentile_metrics", "text", "Metrics of that JSON: a list of ttft, tpot, itl, e2el.", default="ttft,tpot,itl", metavar="LIST"),
    Flag("metric_percentiles", "text", "Percentiles of these metrics: 50,90,99.", default="99", metavar="LIST"),
    Flag("label", "text", "Label of the run, stored with its results.", metavar="TEXT"),
    Flag("metadata", "texts", "Further facts to store with the results.", metavar="KEY=VALUE..."),
    Flag("progress", "switch", "Show the run while it goes on.", default=True, off=("no-progress", "disable-tqdm")),
    Flag("quiet", "switch", "Neither progress nor the table at the end.", default=False),
)

# Flags of `vllm bench serve` that ask for what always holds here. They are taken, and change nothing.
ALREADY_SO: Final = {
    "trust_remote_code": "a tokenizer.json holds no code",
    "skip_chat_template": "no chat template is applied on this side",
}

PANELS: Final = {
    "Services": _TARGET,
    "Load": _LOAD,
    "Workload": _WORKLOAD,
    "Sampling": _SAMPLING,
    "Balancing and health": _BALANCING,
    "Timeouts": _TIMEOUTS,
    "Limits": _LIMIT,
    "Output": _OUTPUT,
}

FLAGS: Final[dict[str, Flag]] = {flag.name: flag for panel in PANELS.values() for flag in panel}


def _alias(name: str, alias_of: str, dataset: str | None = None, **changes: Any) -> Flag:
    return replace(FLAGS[alias_of], name=name, alias_of=alias_of, dataset=dataset, **changes)


_ALIASES: Final = (
    _alias("max_concurrency", "concurrency"),
    _alias("num_warmups", "warmup_requests"),
    _alias("random_input_len", "input_len", "random"),
    _alias("random_output_len", "output_len", "random"),
    _alias("sharegpt_output_len", "output_len", "sharegpt"),
    _alias("custom_output_len", "output_len", "custom", words={"-1": None}),
    _alias("random_range_ratio", "range_ratio", "random"),
    _alias("random_prefix_len", "prefix_len", "random"),
)
ALIASES: Final[dict[str, Flag]] = {flag.name: flag for flag in _ALIASES}

# All that a command line may hold: the flags in order, then those that its help does not list.
EVERY: Final = (*FLAGS.values(), *_ALIASES, *(Flag(name, "switch", why) for name, why in ALREADY_SO.items()))


def aliases_of(name: str) -> tuple[Flag, ...]:
    return tuple(flag for flag in _ALIASES if flag.alias_of == name)


def panel_of(flag: Flag) -> str | None:
    """The heading under which help lists the flag; null for one that it does not list."""
    return next((panel for panel, flags in PANELS.items() if flag in flags), None)
