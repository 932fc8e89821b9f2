import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tightfit.spaces import InputError
from tightfit.workers.llamacpp import bench
from tightfit.workers.llamacpp.bench import bench_files, race, running_order
from tightfit.workers.llamacpp.child import token_ids
from tightfit.workers.llamacpp.library import find_library
from tightfit.workers.llamacpp.speed import NoSpeed, Sample, Speed


def test_in_a_round_all_have_their_turn_and_nobody_is_always_first():
    order = running_order(3, 5)
    assert order == [[0, 1, 2], [2, 0, 1], [1, 2, 0], [0, 1, 2], [2, 0, 1], [1, 2, 0]]


@pytest.mark.parametrize("count", [2, 10, 47])
def test_nobody_is_late_in_every_round_of_a_long_one(count):
    order = running_order(count, 4)
    assert all(sorted(turn) == list(range(count)) for turn in order)
    places = [[turn.index(i) / count for turn in order[1:]] for i in range(count)]
    assert all(0.15 < sum(each) / 4 < 0.75 for each in places)


def test_files_are_run_in_that_order_and_the_first_round_does_not_count():
    seen, ticks = [], []

    def once(i):
        seen.append(i)
        return Sample(1, 1, 1, 1, len(seen))

    found = race(3, 2, once, lambda *at: ticks.append(at))
    assert seen == [0, 1, 2, 2, 0, 1, 1, 2, 0]
    assert [[sample.peak_bytes for sample in samples] for samples in found] == [[5, 9], [6, 7], [4, 8]]
    assert ticks == [(i, 9) for i in range(1, 10)]


@pytest.mark.parametrize("fails", range(6))
def test_a_file_that_fails_is_not_run_again_and_the_others_are(fails):
    seen = []

    def once(i):
        seen.append(i)
        return "it died" if len(seen) == fails + 1 else Sample(1, 1, 1, 1, 1)

    found = race(2, 2, once, lambda *at: None)
    victim = [0, 1, 1, 0, 0, 1][fails]
    assert found[victim] == "it died"
    assert len(found[1 - victim]) == 2
    assert seen[fails + 1 :].count(victim) == 0


def test_two_files_are_measured(float_file, coarse_file):
    found = bench_files([float_file, coarse_file], 24, 8, 3)
    for speed, path in zip(found, (float_file, coarse_file), strict=True):
        assert isinstance(speed, Speed)
        assert (speed.file, speed.file_bytes) == (path.name, path.stat().st_size)
        assert (speed.prompt, speed.generate) == (24, 8)
        assert speed.machine
        assert speed.version
        assert len(speed.samples) == 3
        assert all(value > 0 for sample in speed.samples for value in vars(sample).values())
        assert speed.values("first_token") == pytest.approx([24 / r for r in speed.values("prompt_rate")])
        # A process of its own: this one has torch loaded, and far more.
        assert path.stat().st_size < speed.peak_bytes < 100 * 2**20
    assert found[1].ratio(found[0], "generation_rate").median > 0


def test_the_cache_of_a_long_context_is_memory_too(endless_file):
    short, long = bench_files([endless_file], 16, 1, 1) + bench_files([endless_file], 2**12, 1, 1)
    # 3 blocks of keys and values of 32 float16 each.
    assert long.peak_bytes - short.peak_bytes > 0.8 * 3 * 2 * 32 * 2 * 2**12


def test_a_process_that_is_killed_is_a_failure_of_its_file_alone(endless_file, float_file, tmp_path):
    victim, survivor = tmp_path / "victim.gguf", tmp_path / "survivor.gguf"
    for path in (victim, survivor):
        path.symlink_to(endless_file)
    killed = []
    thread = threading.Thread(target=kill_child, args=(str(victim), killed), daemon=True)
    thread.start()
    found = bench_files([victim, survivor], 8, 200, 1)
    thread.join(10)
    assert len(killed) == 1
    assert found[0] == NoSpeed(
        "victim.gguf", "its process was ended by SIGKILL, as it happens when memory runs out"
    )
    assert isinstance(found[1], Speed)


def kill_child(path, killed):
    end = time.monotonic() + 60
    while not killed and time.monotonic() < end:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
                ours = int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
            except OSError:
                continue
            if ours and path.encode() in command:
                os.kill(int(folder.name), signal.SIGKILL)
                killed.append(int(folder.name))
        time.sleep(0.001)


def test_a_process_that_takes_too_long_is_a_failure(endless_file):
    assert bench_files([endless_file], 8, 100_000, 1, limit=1) == [
        NoSpeed("endless.gguf", "it took longer than 1 s")
    ]


def test_a_file_that_llama_cpp_refuses_is_a_failure(float_file, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"nothing of the kind")
    refused, fine = bench_files([broken, float_file], 8, 8, 1)
    assert isinstance(refused, NoSpeed)
    assert refused.reason.startswith("llama.cpp cannot load it: invalid magic characters")
    assert isinstance(fine, Speed)


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("'loaded\\n' + json.dumps(answer)", None),
        ("json.dumps(answer) + '\\n[1]\\nfreed'", None),
        ("'loaded'", "its process ended without an answer: a warning"),
        ("''", "its process ended without an answer: a warning"),
    ],
)
def test_lines_of_llama_cpp_are_no_answer(printed, reason, tmp_path, monkeypatch):
    answer = {"prompt_rate": 1.0, "generation_rate": 2.0, "first_token": 3.0, "load": 4.0, "peak_bytes": 5}
    child = tmp_path / "child.py"
    child.write_text(
        f"import json, sys\nanswer = {answer}\nprint({printed})\nprint('a warning.', file=sys.stderr)\n"
    )
    monkeypatch.setattr(bench, "_CHILD", child)
    found = bench.run_once(tmp_path / "model.gguf", bench.Work(8, 8))
    assert found == (reason or Sample(**answer))


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are any bytes there")
def test_any_name_of_a_file_will_do(float_file, tmp_path):
    path = tmp_path / os.fsdecode(b"m\xff.gguf")  # no UTF-8
    path.symlink_to(float_file)
    (found,) = bench_files([path], 8, 2, 1)
    assert isinstance(found, Speed)


def test_a_process_ends_with_the_one_that_wanted_it(endless_file):
    command = [sys.executable, "-I", "-S", bench._CHILD, find_library(), endless_file, "8", "100000"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.communicate(timeout=60) == (b"", b"")  # which closes its input
    assert process.returncode == 1


def test_what_cannot_be_asked_for(float_file, tmp_path):
    with pytest.raises(InputError, match=r"validate\.prompt.*f32\.gguf: it knows 64 positions, and 65"):
        bench_files([float_file], 64, 1, 1)
    with pytest.raises(InputError, match="there is no such file"):
        bench_files([tmp_path / "nowhere.gguf"], 8, 8, 1)
    for prompt, generate, rounds, name in ((0, 1, 1, "prompt"), (1, -1, 1, "generate"), (1, 1, 0, "rounds")):
        with pytest.raises(InputError, match=rf"validate\.{name}"):
            bench_files([float_file], prompt, generate, rounds)


def test_tokens_are_spread_over_the_vocabulary_and_always_the_same():
    ids = token_ids(1000, 512)
    assert ids == token_ids(1000, 512)
    assert set(ids) <= set(range(512))
    assert len(set(ids)) > 400
    assert token_ids(10, 49152) == token_ids(20, 49152)[:10]
