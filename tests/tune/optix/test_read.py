"""Configuration files of optix, as they are -> studies."""

import csv
import io

import pytest
from tests.tune.optix import configs

from loadcell.cli.main import main
from loadcell.errors import UserError
from loadcell.fleet.plan import HostFound, plan_services
from loadcell.tune.optix.history import read_history
from loadcell.tune.optix.read import read_optix
from loadcell.tune.placing import placed
from loadcell.tune.read import read_study
from loadcell.tune.spec import space_of
from loadcell.tune.write import to_toml


@pytest.fixture
def write(tmp_path):
    def written(text, name="config.toml"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return written


def reported(write):
    cluster = write(configs.CLUSTER, "cluster.toml")
    notes = []
    return read_optix(
        write(configs.REPORTED),
        "multihost_infer",
        "evalscopeperf",
        backup=True,
        environment={"CLUSTER_CONFIG_PATH": str(cluster)},
        note=notes.append,
    ), notes


def test_the_reported_files_as_they_are(write):
    spec, notes = reported(write)
    space = space_of(spec)
    assert space.searched == ("MAX_NUM_SEQS",)
    assert space.default() == {"MAX_NUM_BATCHED_TOKENS": 4096, "MAX_NUM_SEQS": 32, "CONCURRENCY": 16, "REQUESTRATE": 16}
    assert space.size() == 33
    assert spec.slo == ("ttft mean <= 2000ms", "tpot mean <= 50ms", "success_rate >= 100%")
    assert spec.study.budget.trials == 33
    put = placed(spec, {**space.default(), "MAX_NUM_SEQS": 48}, {})
    assert put.load == {"concurrency": 16.0, "request_rate": 16.0}
    assert put.benchmark.executable == ("evalscope", "perf")
    assert " ".join(put.benchmark.args) == (
        "--url http://127.0.0.1:9975/v1/completions --model qwen --tokenizer-path /data/models/Qwen3-0.6B --dataset openqa "
        "--outputs-dir /tmp/evalscope_out --parallel 16 --number 400"
    )
    assert put.benchmark.output_dir == "/tmp/evalscope_out"
    plan = plan_services(put.fleet, {"127.0.0.1": HostFound(free_ports=(1, 2, 3), folder="/run")})[0]
    words = " ".join(plan.launch.argv)
    assert words.startswith("vllm serve /data/models/Qwen3-0.6B --host 0.0.0.0 --port 9975 --served-model-name qwen")
    for option in ("--max-num-seqs 48", "--max-num-batched-tokens 4096", "--max-model-len 4096", "--gpu-memory-utilization 0.4"):
        assert option in words
    assert "MAX_NUM_SEQS" not in plan.launch.env
    assert any("--backup" in note for note in notes)


def test_a_large_file(write):
    notes = []
    spec = read_optix(write(configs.LARGE), "vllm", "vllm_benchmark", note=notes.append)
    assert spec.slo == ("ttft mean <= 1000ms", "success_rate >= 100%")  # tpot's penalty is 0
    assert spec.study.budget.trials == 51
    assert spec.study.confirm.candidates == 2
    assert spec.study.output_dir == "out"
    assert spec.fleet.start_timeout == 900
    assert spec.trial.timeout == spec.benchmark.timeout == 600
    assert spec.trial.early_stop is False
    assert spec.trial.retry_on == ("connection reset",)
    assert spec.benchmark.fail_on == ("killed",)
    assert [(one.cause, one.pattern) for one in spec.fleet.pattern] == [
        ("out_of_memory", "(?i)NPU\\ \\(out\\)\\ of\\ memory"),
        ("driver_fault", "(?i)device\\ fault"),
    ]
    assert spec.fleet.executable == "/opt/own/bin/vllm"
    assert spec.benchmark.executable == ("/opt/own/bin/vllm", "bench", "serve")
    assert any(note.startswith("service is not used") for note in notes)
    by_name = {one.name: one.place for one in spec.parameter}
    assert by_name["MAX_NUM_SEQS"].flag == "--max-num-seqs"
    assert by_name["ENABLE_PREFIX_CACHING"].flag == "--enable-prefix-caching/--no-enable-prefix-caching"
    assert by_name["VLLM_WORKER_MULTIPROC_METHOD"].env == "VLLM_WORKER_MULTIPROC_METHOD"
    assert by_name["GPU_MEMORY_UTILIZATION"].word
    assert by_name["CONCURRENCY"].load == "concurrency"
    assert "REQUESTRATE" not in by_name  # 0 is unlimited
    space = space_of(spec)
    whole = space.complete(
        {
            **space.default(),
            "MAX_NUM_SEQS": 96,
            "CONCURRENCY": 50,
            "COMPILATION_CONFIG": '--compilation-config \'{"cudagraph_mode": "FULL"}\'',
        }
    )
    assert space.legal(whole) is None
    put = placed(spec, {**whole, "ENABLE_PREFIX_CACHING": False}, {})
    launch = plan_services(put.fleet, {"local": HostFound(folder="/run")})[0].launch
    words = list(launch.argv)
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.9"
    assert words[words.index("--compilation-config") + 1] == '{"cudagraph_mode": "FULL"}'
    assert words[words.index("--max-num-batched-tokens") + 1] == str(96 * 16)
    assert "--no-enable-prefix-caching" in words
    assert launch.env["VLLM_WORKER_MULTIPROC_METHOD"] == "fork"
    bench = " ".join(put.benchmark.args)
    assert bench == (
        "--host {host} --port {port} --model /models/llama --served-model-name llama --dataset-name sharegpt --num-prompts 3000 "
        "--max-concurrency 50 --save-result --dataset-path /data/share.json --ignore-eos"
    )


def test_an_empty_value_adds_nothing(write):
    spec = read_optix(write(configs.LARGE), "vllm", "vllm_benchmark")
    put = placed(spec, space_of(spec).default(), {})
    assert [word for word in put.fleet.args if "compilation" in word or word == ""] == []


def test_our_own_client_takes_the_files_load(write):
    notes = []
    spec = read_optix(write(configs.LARGE), "vllm", note=notes.append)
    assert spec.benchmark.kind == "loadcell"
    assert spec.bench == {"dataset_name": "sharegpt", "num_prompts": 3000, "dataset_path": "/data/share.json", "ignore_eos": True}
    evalscope = read_optix(write(configs.REPORTED), "vllm", note=notes.append)
    assert evalscope.bench == {"num_prompts": "400"}
    assert any("--tokenizer-path" in note or "--dataset" in note for note in notes) or evalscope.bench


def test_both_calibrations(write):
    rate = 'name = "REQUESTRATE"\nconfig_position = "env"\nmin = 0\nmax = 0'
    other = configs.LARGE.replace(rate, rate.replace("min = 0\nmax = 0", "min = 1\nmax = 40"))
    searched = read_optix(write(other), "vllm")
    assert searched.load.mode == "fixed"
    assert space_of(searched).default()["REQUESTRATE"] == 40
    assert "CONCURRENCY" in space_of(searched).searched
    calibrated = read_optix(write(other.replace("use_request_rate_calibration = false", "")), "vllm")
    assert (calibrated.load.mode, calibrated.load.high, calibrated.load.factor) == ("calibrated", 40, 1.05)
    assert space_of(calibrated).default()["CONCURRENCY"] == 1000
    assert "CONCURRENCY" not in space_of(calibrated).searched


def test_concurrency_as_a_share_of_the_batch(write):
    whole = 'name = "CONCURRENCY"\nconfig_position = "env"\nmin = 1\nmax = 1000\ndtype = "int"\nvalue = 100'
    share = 'name = "CONCURRENCY"\nconfig_position = "env"\nmin = 0.1\nmax = 2\ndtype = "ratio"\ndtype_param = "MAX_NUM_SEQS"\nvalue = 128'
    assert whole in configs.LARGE
    spec = read_optix(write(configs.LARGE.replace(whole, share)), "vllm")
    space = space_of(spec)
    assert space.default()["CONCURRENCY"] == 128
    assert placed(spec, space.complete({**space.default(), "MAX_NUM_SEQS": 100, "CONCURRENCY_ratio": 0.5}), {}).load == {
        "concurrency": 50.0
    }
    fixed = read_optix(write(configs.LARGE.replace(whole, share).replace("use_request_rate_calibration = false", "")), "vllm")
    assert space_of(fixed).complete({**space.default(), "MAX_NUM_SEQS": 100})["CONCURRENCY"] == 200
    assert "CONCURRENCY_ratio" not in space_of(fixed).searched


def test_mindie(write):
    config = write(configs.MINDIE_JSON, "mindie.json")
    before = config.read_bytes()
    spec = read_optix(
        write(configs.MINDIE.replace("CONFIG", str(config))), "mindie", "ais_bench", environment={"MIES_INSTALL_PATH": "/opt/mindie"}
    )
    assert spec.fleet.model == "/weights"
    assert spec.fleet.port == 1025
    assert spec.fleet.devices == (0, 1, 2, 3)
    assert spec.benchmark.args == ("--models", "models", "--mode", "perf", "--num_prompts", "100")
    space = space_of(spec)
    whole = space.complete(
        {
            "max_batch_size": 100,
            "max_prefill_batch_size_ratio": 0.5,
            "support_select_batch": False,
            "tp": 2,
            "prefill_time_ms_per_req": 10,
            "CONCURRENCY": 1001,
        }
    )
    assert space.legal(whole) is None
    put = placed(spec, whole, {})
    assert put.fleet.config == {
        "BackendConfig.ScheduleConfig.maxBatchSize": 100,
        "BackendConfig.ScheduleConfig.maxPrefillBatchSize": 50,
        "BackendConfig.ScheduleConfig.supportSelectBatch": False,
        "BackendConfig.ModelDeployConfig.ModelConfig.0.tp": 2,
        "BackendConfig.ModelDeployConfig.ModelConfig.0.dp": 2,
    }
    launch = plan_services(put.fleet, {"local": HostFound(folder="/run")}, config.read_text())[0].launch
    assert launch.argv == ("/opt/mindie/bin/mindieservice_daemon",)
    assert '"maxPrefillBatchSize": 50' in dict(launch.files)["mindie-config.json"]
    assert config.read_bytes() == before


def test_an_engine_of_a_plug_in(write):
    own = configs.LARGE.replace("[vllm.command]", '[mine.command]\ncommand = "start-it --fast"').replace(
        "[[vllm.target_field]]", "[[mine.target_field]]"
    )
    spec = read_optix(write(own), "mine")
    assert spec.fleet.engine == "command"
    assert spec.fleet.command[:3] == ("/opt/own/bin/start-it", "--fast", "--host")
    put = placed(spec, space_of(spec).default(), {})
    assert put.fleet.env["MAX_NUM_SEQS"] == "64"
    assert "0.9" in put.fleet.command


@pytest.mark.parametrize(
    ("old", "new", "engine", "benchmark", "why"),
    [
        ('port = "8000"\nmodel = "/models/llama"', 'port = "port"\nmodel = "/models/llama"', "vllm", None, "a port number is expected"),
        ("", "", "nvllm", None, "[nvllm.command] is missing"),
        ("", "", "vllm", "wrk", "known are loadcell"),
        ("", "", "multihost_infer", None, "CLUSTER_CONFIG_PATH is not set"),
        ('dtype = "times"', 'dtype = "tims"', "vllm", None, "MAX_NUM_BATCHED_TOKENS"),
        ('config_position = "env"', 'config_position = "a.b"', "vllm", None, "is a place in MindIE's configuration"),
        ('others = "--gpu', "others = \"'--gpu", "vllm", None, "No closing quotation"),
        ("n_particles = 10", "n_particles = ", "vllm", None, "not TOML"),
    ],
)
def test_refusals(write, old, new, engine, benchmark, why):
    file = write(configs.LARGE.replace(old, new, 1) if old else configs.LARGE)
    with pytest.raises(UserError) as refused:
        read_optix(file, engine, benchmark)
    assert why in str(refused.value)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "benchmark"), [(configs.LARGE, None), (configs.LARGE, "vllm_benchmark"), (configs.REPORTED, "evalscopeperf")]
)
def test_written_as_toml_it_reads_as_the_same_study(write, text, benchmark):
    spec = read_optix(write(text), "vllm", benchmark)
    again = read_study(write(to_toml(spec, "a comment\nof two lines"), "study.toml"))
    for key in type(spec).__struct_fields__:
        if key != "origins":
            assert getattr(again, key) == getattr(spec, key), key


def test_the_verb(write, capsys, tmp_path, monkeypatch):
    cluster = write(configs.CLUSTER, "cluster.toml")
    monkeypatch.setenv("CLUSTER_CONFIG_PATH", str(cluster))
    out = tmp_path / "study.toml"
    words = ["import-optix", str(write(configs.REPORTED)), "-e", "multihost_infer", "-b", "evalscopeperf"]
    assert main([*words, "-o", str(out)]) == 0
    assert space_of(read_study(out)).searched == ("MAX_NUM_SEQS",)
    assert main([*words, "-o", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(words) == 0
    assert 'name = "MAX_NUM_SEQS"' in capsys.readouterr().out


def history(*rows):
    out = io.StringIO()
    names = ["generate_speed", "time_to_first_token", "time_per_output_token", "success_rate", "throughput", "MAX_NUM_BATCHED_TOKENS", "MAX_NUM_SEQS",
             "CONCURRENCY", "REQUESTRATE", "error", "backup", "duration", "real_evaluation", "fitness"]  # fmt: skip
    table = csv.DictWriter(out, names)
    table.writeheader()
    base = dict(zip(names, (1000, 0.5, 0.02, 1.0, 5.0, 4096, 40, 16, 16.0, "", "", 60, True, 2.3), strict=True))
    for change in rows:
        table.writerow({**base, **change})
    return out.getvalue()


def test_a_history_becomes_prior_trials(write):
    spec, _ = reported(write)
    text = history(
        {},
        {},
        {"MAX_NUM_SEQS": 48, "time_to_first_token": 3.0},
        {"MAX_NUM_SEQS": 50, "real_evaluation": False},
        {"MAX_NUM_SEQS": 500},
        {"MAX_NUM_SEQS": 60, "generate_speed": 0, "error": "RuntimeError: NPU out of memory"},
        {"MAX_NUM_SEQS": 61, "generate_speed": 0, "error": "something"},
        {"MAX_NUM_SEQS": 62, "generate_speed": 0},
    )
    found = read_history(text, "data_storage_1.csv", spec)
    assert [(one.configuration["MAX_NUM_SEQS"], one.outcome) for one in found.trials] == [
        (40, "ok"),
        (48, "slo_violated"),
        (60, "oom_start"),
        (61, "bench_failed"),
    ]
    first = found.trials[0]
    assert first.objective == 1000
    assert first.figures["ttft_mean"] == 0.5
    assert first.number < 0
    assert all(value is not None and value <= 0 for value in first.violations.values())
    assert found.trials[2].objective is None
    assert sum(found.skipped.values()) == 4
    with pytest.raises(UserError, match="no history"):
        read_history("a,b\n1,2\n", "x.csv", spec)


def test_load_breakpoint_takes_the_newest_history_alone(write, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    for name in ("data_storage_20250101.csv", "data_storage_20260101.csv"):
        (store / name).write_text(history({}))
    notes = []
    spec = read_optix(write(configs.REPORTED), "vllm", load_breakpoint=True, note=notes.append)
    assert spec.study.prior == (str(store / "data_storage_20260101.csv"),)
    assert any("of 2 histories" in note for note in notes)
