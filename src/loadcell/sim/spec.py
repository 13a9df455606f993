"""What a simulated engine is: one frozen spec. Flags (`sim.flags`) and in-process engines (`sim.inprocess`) are made from it.

Names are vLLM's where vLLM has the flag. Times in ms where a person types them; everything inside is ns.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Quantization = Literal["none", "fp8", "awq", "gptq"]
KvCacheDtype = Literal["auto", "fp8"]
ReasoningField = Literal["reasoning_content", "reasoning"]


def _help(text: str) -> Meta:
    return Meta(description=text)


class SimSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every setting of one simulated engine. Tuples are flags that may be repeated."""

    # --- where it listens
    host: Annotated[str, _help("address to listen on")] = "127.0.0.1"
    port: Annotated[int, _help("port to listen on; 0 takes a free one")] = 8000
    root_path: Annotated[str, _help("path prefix under which the API is served, like /gw; a gateway's /gw/v2 also works without /v1")] = ""
    api_key: Annotated[str | None, _help("answer 401 under /v1 without this bearer token")] = None
    ssl_certfile: Annotated[str | None, _help("serve https with this certificate chain (PEM)")] = None
    ssl_keyfile: Annotated[str | None, _help("private key of --ssl-certfile (PEM)")] = None
    access_log: Annotated[str | None, _help("append one JSON line per HTTP request, with the send time of every chunk")] = None
    exit_on_stdin_eof: Annotated[bool, _help("stop when standard input closes, so that no engine outlives its owner")] = False

    # --- which model it plays, on what
    model: Annotated[str | None, _help("model name to serve; default: the profile's model")] = None
    served_model_name: Annotated[tuple[str, ...], _help("names under which the model answers instead of --model; repeatable")] = ()
    profile: Annotated[
        str, _help("ACCELERATOR:MODEL that sets sizes and speeds, such as h100:llama-3.1-8b (docs/simulate.md lists them)")
    ] = "test:tiny"
    seed: Annotated[int, _help("seed of answers, lengths, noise and faults")] = 0
    noise: Annotated[float, _help("relative spread of step times (0.05 = 5 %%)")] = 0.0
    ttft_ms: Annotated[float | None, _help("fixed timing: first token this long after arrival, whatever the load; needs --itl-ms")] = None
    itl_ms: Annotated[float | None, _help("fixed timing: each further token this long after the one before; needs --ttft-ms")] = None

    # --- vLLM's engine arguments
    max_num_seqs: Annotated[int, _help("most sequences in one step")] = 256
    max_num_batched_tokens: Annotated[int | None, _help("most tokens in one step; default 8192, at least --max-model-len unchunked")] = None
    max_model_len: Annotated[int | None, _help("longest prompt + answer in tokens; default: the model's")] = None
    gpu_memory_utilization: Annotated[float, _help("fraction of device memory that the engine may fill")] = 0.9
    num_gpu_blocks_override: Annotated[int | None, _help("KV cache blocks, instead of what the memory allows")] = None
    block_size: Annotated[int, _help("tokens per KV cache block")] = 16
    enable_prefix_caching: Annotated[bool, _help("share KV blocks of equal prompt prefixes")] = True
    enable_chunked_prefill: Annotated[bool, _help("let a prefill be split over steps")] = True
    tensor_parallel_size: Annotated[int, _help("devices that split every layer")] = 1
    data_parallel_size: Annotated[int, _help("independent engines behind this port")] = 1
    data_parallel_size_local: Annotated[int | None, _help("how many of them this machine has: the head waits for the others first")] = None
    data_parallel_start_rank: Annotated[int | None, _help("first rank of a --headless process")] = None
    data_parallel_address: Annotated[str, _help("where the head waits for ranks of other machines")] = "127.0.0.1"
    data_parallel_rpc_port: Annotated[int, _help("port of that address")] = 29550
    headless: Annotated[bool, _help("be ranks of another process: join the head, serve nothing, stay until it leaves")] = False
    num_speculative_tokens: Annotated[int, _help("draft tokens per sequence and step; 0 = no speculative decoding")] = 0
    speculative_acceptance: Annotated[float, _help("chance that a draft token is accepted, given the ones before were")] = 0.7
    kv_cache_dtype: Annotated[KvCacheDtype, _help("precision of the KV cache")] = "auto"
    quantization: Annotated[Quantization, _help("precision of the weights")] = "none"
    enforce_eager: Annotated[bool, _help("no CUDA graphs: less memory, slower steps")] = False
    stream_interval: Annotated[int, _help("tokens per streamed chunk after the first")] = 1

    # --- what it answers
    mean_output_tokens: Annotated[float, _help("mean length of an answer that ends by itself")] = 200.0
    output_spread: Annotated[float, _help("sigma of the lognormal answer length; 0 = always the mean")] = 0.6
    reasoning_tokens: Annotated[int, _help("tokens of reasoning before each chat answer")] = 0
    reasoning_field: Annotated[ReasoningField, _help("name of the reasoning field in chat deltas and messages")] = "reasoning_content"
    enable_prompt_tokens_details: Annotated[bool, _help("report cached prompt tokens in usage")] = False
    refuse_field: Annotated[tuple[str, ...], _help("answer 400 to a request that has this body field; repeatable")] = ()

    # --- what goes wrong
    fault: Annotated[tuple[str, ...], _help("KIND[,key=value...], such as crash,after=5 or reject,status=429,every=10; repeatable")] = ()

    @property
    def fixed_timing(self) -> bool:
        return self.ttft_ms is not None and self.itl_ms is not None
