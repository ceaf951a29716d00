"""Judges the event files of `gradtile train --tensorboard` with TensorBoard itself.

usage: tensorboard_judge.py GRADTILE DIRECTORY    (scripts/judge.sh calls it)

A run is killed after its last checkpoint, and resumed. TensorBoard's two readers, the one in Python and the data server of `tensorboard`,
must then show the same steps and numbers as metrics.jsonl: each step once, and none that the killed process did after the checkpoint. Every
record must have the checksums that TensorBoard's own record writer gives it.
"""
import json
import math
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from gradtile_runs import run

EVERY, STEPS = 50, 400


def require(condition, *message):
    if not condition:
        raise SystemExit("tensorboard_judge: " + " ".join(map(str, message)))


def metrics_of(out):
    complete = (out / "metrics.jsonl").read_text().rpartition("\n")[0]  # a running process may be writing the last line
    lines = [json.loads(line) for line in complete.splitlines()]
    return [line for line in lines if "event" not in line]


def train_with_a_kill(gradtile, directory):
    """Returns the run's directory and that of its events, and the first step of the second process."""
    text, out, events = (directory / name for name in ("text.txt", "run", "events"))
    run(gradtile, "corpus", "--characters", "20000", "--out", text)
    command = [gradtile, "train", "--data", text, "--out", out, "--layers", "1", "--heads", "2", "--width", "32", "--context", "32", "--batch", "8",
               "--steps", STEPS, "--eval-every", "20", "--save-every", EVERY, "--warmup", "5", "--device", "cpu", "--threads", "1", "--quiet",
               "--tensorboard", events]
    process = subprocess.Popen([str(part) for part in command])
    enough = 3 * EVERY + EVERY // 2
    while process.poll() is None and (not (out / "metrics.jsonl").exists() or len(metrics_of(out)) < enough):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    require(process.wait() == -signal.SIGKILL, "the run ended before it was killed")
    killed_at = metrics_of(out)[-1]["step"]
    run(gradtile, "train", "--resume", out, "--quiet")
    require(metrics_of(out)[-1]["step"] == STEPS, "the resumed run did not finish")
    require(len(list(events.iterdir())) == 2, "expected one event file per process:", list(events.iterdir()))
    return out, events, killed_at


def records_of(file):
    """The records as TensorBoard reads them; it checks both checksums of each."""
    return list(RawEventFileLoader(str(file)).Load())


def judge_bytes(events, directory):
    for file in sorted(events.iterdir()):
        records = records_of(file)
        require(event_pb2.Event.FromString(records[0]).file_version == "brain.Event:2", file, "has no version")
        rewritten = directory / "rewritten"
        with open(rewritten, "wb") as output:
            writer = RecordWriter(output)
            for record in records:
                writer.write(record)
        written = file.read_bytes()
        require(written.startswith(rewritten.read_bytes()), file, "differs from what TensorBoard's record writer writes")


def judge_curves(reader, scalars_of, metrics):
    tags = {key for line in metrics for key in line} - {"step", "not_finite"}
    for tag in sorted(tags):
        expected = [(line["step"], line[tag]) for line in metrics if tag in line]
        found = scalars_of(tag)
        require([step for step, _ in found] == [step for step, _ in expected], reader, tag, "has other steps:", [step for step, _ in found][:5], "...")
        for (step, value), (_, wanted) in zip(found, expected):
            # metrics.jsonl has 9 digits; a scalar is that number in float32, whose rounding is at most 2^-24 of it.
            require(math.isclose(value, wanted, rel_tol=2**-24 + 1e-8), reader, tag, "of step", step, "is", value, "and not", wanted)
    print(f"{reader}: {len(tags)} curves of {len(metrics)} steps equal metrics.jsonl")


def judge_python_reader(events, metrics):
    accumulator = EventAccumulator(str(events), size_guidance={"scalars": 0})
    accumulator.Reload()
    judge_curves("the reader in Python", lambda tag: [(event.step, event.value) for event in accumulator.Scalars(tag)], metrics)
    times = [event.wall_time for event in accumulator.Scalars("loss")]
    require(times == sorted(times) and abs(times[-1] - time.time()) < 600, "the events' wall times are wrong:", times[:2])


def judge_server(events, metrics):
    log = events.parent / "tensorboard.log"
    with open(log, "w") as output:
        server = subprocess.Popen([sys.executable, "-m", "tensorboard.main", "--logdir", str(events.parent), "--port", "0", "--load_fast", "true",
                                   "--samples_per_plugin", "scalars=100000"], stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.time() + 120
        address, loaded = None, False
        while not loaded:
            require(server.poll() is None and time.time() < deadline, "no TensorBoard:", log.read_text()[-500:])
            time.sleep(0.2)
            address = address or next((word for word in log.read_text().split() if word.startswith("http://localhost:")), None)
            if address:
                with urllib.request.urlopen(f"{address}data/plugin/scalars/tags") as answer:
                    loaded = "loss" in json.load(answer).get(events.name, {})

        def scalars_of(tag):
            query = urllib.parse.urlencode({"run": events.name, "tag": tag})
            with urllib.request.urlopen(f"{address}data/plugin/scalars/scalars?{query}") as answer:
                return [(step, value) for _, step, value in json.load(answer)]

        while scalars_of("loss")[-1][0] < metrics[-1]["step"]:  # the server is still reading
            require(time.time() < deadline, "the last step does not arrive")
            time.sleep(0.2)
        judge_curves("TensorBoard's data server", scalars_of, metrics)
    finally:
        server.terminate()
        server.wait()


def main():
    gradtile, directory = sys.argv[1], Path(sys.argv[2])
    out, events, killed_at = train_with_a_kill(gradtile, directory)
    metrics = metrics_of(out)
    first, second = sorted(events.iterdir())
    steps = [[event_pb2.Event.FromString(record).step for record in records_of(file)][2:] for file in (first, second)]
    require(steps[0][-1] >= killed_at - 1 and steps[1][0] <= steps[0][-1] and steps[1][-1] == STEPS,
            "the kill was not after a checkpoint:", steps[0][-1], steps[1][0])
    print(f"killed after step {steps[0][-1]}, resumed with step {steps[1][0]}")
    judge_bytes(events, directory)
    judge_python_reader(events, metrics)
    judge_server(events, metrics)


main()
