"""Configurations of optix for tests: the two files of a public report, and ones that use every dtype."""

CLUSTER = """
docker_use_sudo = false

[vllm_mix]
chips_per_node = 8

[[vllm_mix.node]]
host = "127.0.0.1"
nic_name = "lo"     # explicit
"""

REPORTED = """
[vllm]
[vllm.command]
host = "0.0.0.0"
port = "9975"
model = "/data/models/Qwen3-0.6B"          # any small model
served_model_name = "qwen"
others = "--max-model-len 4096 --gpu-memory-utilization 0.4"

[[vllm.target_field]]
name = "MAX_NUM_BATCHED_TOKENS"
config_position = "env"
min = 4096
max = 4096
dtype = "int"
value = 4096

[[vllm.target_field]]
name = "MAX_NUM_SEQS"
config_position = "env"
min = 32
max = 64
dtype = "int"
value = 32

[[vllm.target_field]]
name = "CONCURRENCY"
config_position = "env"
min = 16
max = 16
dtype = "int"
value = 16

[[vllm.target_field]]
name = "REQUESTRATE"
config_position = "env"
min = 16
max = 16
dtype = "float"
value = 16

[evalscopeperf]
output_path = "/tmp/evalscope_out"
[evalscopeperf.command]
url = "http://127.0.0.1:9975/v1/completions"
model = "qwen"
tokenizer_path = "/data/models/Qwen3-0.6B"
dataset = "openqa"
outputs_dir = "/tmp/evalscope_out"
others = "--parallel 16 --number 400"
"""

LARGE = """
n_particles = 10
iters = 5
ttft_penalty = 1
tpot_penalty = 0
success_rate_penalty = 5.0
ttft_slo = 1
tpot_slo = 0.05
service = "master"
use_request_rate_calibration = false
wait_start_time = 900
particles_time_out = 600
output = "out"

[data_storage]
pso_top_k = 2

[deploy]
path_prefix = "/opt/own"

[health_check]
log_snippet_length = 200
[health_check.service_errors.fatal_patterns]
out_of_memory = ["NPU (out) of memory"]
device_error = ["device fault"]
[health_check.service_errors.retryable_patterns]
network_error = ["connection reset"]
io_error = []
[health_check.benchmark_errors.fatal_patterns]
out_of_memory = ["killed"]

[benchmark_early_exit]
enabled = true
action = "report"

[vllm_benchmark.command]
host = "127.0.0.1"
port = "8000"
model = "model_path"
served_model_name = "name"
dataset_name = "sharegpt"
num_prompts = 3000
others = "--dataset-path /data/share.json --ignore-eos"

[vllm.command]
host = "127.0.0.1"
port = "8000"
model = "/models/llama"
served_model_name = "llama"
others = "--gpu-memory-utilization $GPU_MEMORY_UTILIZATION $COMPILATION_CONFIG"

[[vllm.target_field]]
name = "MAX_NUM_SEQS"
config_position = "env"
min = 32
max = 512
dtype = "int"
value = 64
[[vllm.target_field]]
name = "GPU_MEMORY_UTILIZATION"
config_position = "env"
dtype = "enum"
dtype_param = [0.9, 0.91, 0.92]
value = 0.9
[[vllm.target_field]]
name = "COMPILATION_CONFIG"
config_position = "env"
dtype = "enum"
dtype_param = ["", "--compilation-config '{\\"cudagraph_mode\\": \\"FULL\\"}'"]
value = ""
[[vllm.target_field]]
name = "VLLM_WORKER_MULTIPROC_METHOD"
config_position = "env"
dtype = "enum"
dtype_param = ["fork", "spawn"]
value = "fork"
[[vllm.target_field]]
name = "ENABLE_PREFIX_CACHING"
config_position = "env"
min = 0
max = 1
dtype = "bool"
value = 1
[[vllm.target_field]]
name = "MAX_NUM_BATCHED_TOKENS"
config_position = "env"
min = 0
max = 0
dtype = "times"
dtype_param = { target_name = "MAX_NUM_SEQS", product = 16, dtype = "int" }
[[vllm.target_field]]
name = "CONCURRENCY"
config_position = "env"
min = 1
max = 1000
dtype = "int"
value = 100
[[vllm.target_field]]
name = "REQUESTRATE"
config_position = "env"
min = 0
max = 0
dtype = "float"
value = 0
"""

MINDIE_JSON = """
{"ServerConfig": {"port": 1025, "ipAddress": "127.0.0.1"},
 "BackendConfig": {"npuDeviceIds": [[0, 1, 2, 3]],
  "ModelDeployConfig": {"ModelConfig": [{"modelName": "m", "modelWeightPath": "/weights", "worldSize": 4}]},
  "ScheduleConfig": {"maxBatchSize": 200}}}
"""

MINDIE = """
[mindie]
config_path = "CONFIG"
[[mindie.target_field]]
name = "max_batch_size"
config_position = "BackendConfig.ScheduleConfig.maxBatchSize"
min = 10
max = 1000
dtype = "int"
value = 200
[[mindie.target_field]]
name = "max_prefill_batch_size"
config_position = "BackendConfig.ScheduleConfig.maxPrefillBatchSize"
min = 0.1
max = 0.7
dtype = "ratio"
dtype_param = "max_batch_size"
value = 50
[[mindie.target_field]]
name = "prefill_time_ms_per_req"
config_position = "BackendConfig.ScheduleConfig.prefillTimeMsPerReq"
min = 0
max = 1000
dtype = "range"
dtype_param = 10
[[mindie.target_field]]
name = "support_select_batch"
config_position = "BackendConfig.ScheduleConfig.supportSelectBatch"
min = 0
max = 1
dtype = "bool"
[[mindie.target_field]]
name = "tp"
config_position = "BackendConfig.ModelDeployConfig.ModelConfig.0.tp"
min = 0
max = 1
dtype = "enum"
dtype_param = [1, 2, 4]
[[mindie.target_field]]
name = "dp"
config_position = "BackendConfig.ModelDeployConfig.ModelConfig.0.dp"
min = 0
max = 0
dtype = "factories"
dtype_param = { target_name = "tp", product = 4, dtype = "int" }
[[mindie.target_field]]
name = "CONCURRENCY"
config_position = "env"
min = 1
max = 1001
dtype = "int"
value = 100
[[mindie.target_field]]
name = "REQUESTRATE"
config_position = "env"
min = 1
max = 1001
dtype = "float"
value = 100

[ais_bench.command]
models = "models"
mode = "perf"
others = "--num_prompts 100"
"""
