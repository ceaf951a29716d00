"""FlashAttention's own tests judge gradtile's attention.

usage: run.py SHIM DIR [--seconds N] [--seed N] [--workers N] [--device cuda|cpu] [--case JSON]    (scripts/judge.sh --flash-attention DIR calls it)

DIR is a checkout of Dao-AILab/flash-attention. Its tests call the functions of this folder's flash_attn and flash_attn_interface. Each worker runs
parameter sets that it draws from the tests' own lists until the time is over; every test gets the same time. A CPU runs lengths up to 512, and
repeats a call 3 times where a test does so 50 to 1000 times.

The tolerances are the tests' own, with one exception. An assertion |x - reference| <= allowed cannot hold after any rounding if `allowed` is 0,
because PyTorch's 16-bit result has no error, and the reference is 0 everywhere (with one key P = 1, so dQ and dK are 0, as differences of equal sums
that kernels compute in different orders). Such an x counts as a "zero reference" if it is at most the dtype's epsilon, and as a failure otherwise.

Exit code 1 after a failure, a refusal by gradtile, a worker that dies or hangs, or if no test passes.
"""
import argparse
import ast
import collections
import contextlib
import io
import json
import math
import multiprocessing
import os
import random
import re
import sys
import time
import traceback
import types
from multiprocessing.connection import wait
from pathlib import Path

import torch

import gradtile_attention as gradtile

SUITES = {
    "flash2": "tests/test_flash_attn.py",
    "flash3": "hopper/test_flash_attn.py",
    "flash3_determinism": "hopper/test_flash_attn_bwd_determinism.py",
}
BETWEEN = {"test": "(between tests)", "case": {}}
GRACE = 120  # seconds that a test may run after the time is over

# What gradtile's operator does not have: the parameter's values that are left out, or the whole test.
OUTSIDE = {
    "dtype": ("FP8", lambda value: "float8" in str(value)),
    "has_qv": ("qv", bool),
    "page_size": ("paged caches", lambda value: value is not None),
    "paged_kv_block_size": ("paged caches", lambda value: value is not None),
    "rotary_fraction": ("rotary embedding of cached keys", bool),
    "test_flash_attn_varlen_paged_kv_num_splits": ("paged caches", None),
    "test_flash_attn_kvcache_paged_block_table_bounds": ("paged caches", None),
    "test_flash_attn_generator_arg_must_be_none": ("FlashAttention's C++ functions", None),
    "test_flash3_bw_compatibility": ("FlashAttention's torch.ops", None),
}


class Skipped(Exception):
    pass


class Comparisons:
    """Counts a test's comparisons, and decides them."""

    def __init__(self, dtype):
        self.epsilon = torch.finfo(dtype).eps
        self.count = self.zero_references = 0

    def at_most(self, error, allowed, reference, text):
        self.count += 1
        if error <= allowed:
            return True
        if allowed == 0 and error <= self.epsilon and reference is not None and not reference().any():
            self.zero_references += 1
            return True
        raise AssertionError(f"{text}: {error:.6g} is more than {allowed:.6g}")


class ComparisonCalls(ast.NodeTransformer):
    """Replaces `assert |x - reference| <= allowed` by a call of Comparisons.at_most."""

    def visit_Assert(self, node):
        match node.test:
            case ast.Compare(left=error, ops=[ast.LtE()], comparators=[allowed]):
                text = f"line {node.lineno}: {ast.unparse(node.test)}"
                differences = [x for x in ast.walk(error) if isinstance(x, ast.BinOp) and isinstance(x.op, ast.Sub)]
                reference = f"lambda: {ast.unparse(differences[0].right)}" if differences else "None"
                call = f"comparisons.at_most({ast.unparse(error)}, {ast.unparse(allowed)}, {reference}, {text!r})"
                node.test = ast.copy_location(ast.parse(call, mode="eval").body, node.test)
                return ast.fix_missing_locations(node)
        return node


def prepare_imports(directory, device):
    """pytest would collect 400,000 parameter sets, so only the names that the suites use stand in for it."""
    def parametrize(names, values):
        names = [name.strip() for name in names.split(",")]
        rows = [value if len(names) > 1 else (value,) for value in values]

        def decorate(function):
            function.__dict__.setdefault("parameters", []).append((names, rows))
            return function
        return decorate

    def skip(reason="by the suite itself"):
        raise Skipped(reason)
    sys.modules["pytest"] = types.SimpleNamespace(skip=skip, mark=types.SimpleNamespace(parametrize=parametrize, skipif=lambda *a, **k: lambda f: f))
    checks = {f"safe_{name}_check": None for name in ("fake", "schema", "aot_autograd")}
    sys.modules["torch.testing._internal.optests.generate_tests"] = types.SimpleNamespace(**checks)
    sys.modules["flash_attn.layers.rotary"] = types.SimpleNamespace(apply_rotary_emb=None)
    sys.modules["flash_attn.flash_attn_interface"] = types.SimpleNamespace(USE_TRITON_ROCM=False, _get_block_size_n=lambda *_: 1 << 30)
    sys.path.append(str(directory / "hopper"))
    import flash_attn
    flash_attn.__path__.append(str(directory / "flash_attn"))
    if device == "cpu":
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 40)


def load(suite, directory, device):
    path = directory / SUITES[suite]
    text = path.read_text().replace("70 * 1024 ** 3", "1")  # a race test fills the GPU's memory, which other workers need
    if device == "cpu":
        text = text.replace('"cuda"', '"cpu"').replace("batch_size = 60", "batch_size = 3")
        text = re.sub(r"range\((50|100|250|1000|iterations)\)", "range(3)", text)
    module = types.ModuleType(suite)
    exec(compile(ComparisonCalls().visit(ast.parse(text)), path, "exec"), module.__dict__)
    return module


def shown(case):
    return {name: str(value) for name, value in case.items()}


def cases(test, seed, device, wanted):
    """Different parameter sets in a random order."""
    def included(names, row):
        case = dict(zip(names, row))
        if any(wanted.get(name, value) != value for name, value in shown(case).items()):
            return False
        too_long = device == "cpu" and any(name.startswith("seqlen") and value > 512 for name, value in case.items())
        return not too_long and not any(name in OUTSIDE and OUTSIDE[name][1](value) for name, value in case.items())
    axes = [(names, [row for row in rows if included(names, row)]) for names, rows in getattr(test, "parameters", [])]
    total = math.prod(len(rows) for _, rows in axes)
    for index in random.Random(seed).sample(range(total), min(total, 10_000)):
        case = {}
        for names, rows in axes:
            index, i = divmod(index, len(rows))
            case.update(zip(names, rows[i]))
        yield case


def run_case(module, name, case):
    comparisons = module.comparisons = Comparisons(case.get("dtype", torch.float16))
    begin, status, message = time.monotonic(), "passed", ""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            getattr(module, name)(**case)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    except Skipped as reason:
        status, message = "skipped", str(reason)
    except gradtile.Refused as refusal:
        status, message = "refused", str(refusal)
    except torch.cuda.OutOfMemoryError:
        status, message = "skipped", "for lack of memory on the GPU: fewer workers help"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        status, message = "failed", f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
        traceback.clear_frames(error.__traceback__)  # their tensors
    return {"status": status, "message": message, "seconds": time.monotonic() - begin, "comparisons": comparisons.count,
            "zero references": comparisons.zero_references}


def work(arguments, worker, until, results):
    """Runs the test with the least time so far, again and again; sends each case before and its result after it."""
    torch.set_num_threads(max(1, os.cpu_count() // arguments.workers))
    if arguments.device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())  # users' streams are not the default stream
    gradtile.open_shim(arguments.shim, arguments.device)
    prepare_imports(arguments.directory, arguments.device)
    tests = {}
    for suite in SUITES:
        module = load(suite, arguments.directory, arguments.device)
        for name, test in vars(module).items():
            full_name = f"{suite}::{name}"
            if name.startswith("test_") and name not in OUTSIDE and arguments.test in (None, full_name):
                drawn = cases(test, f"{arguments.seed} {full_name}", arguments.device, arguments.case)
                tests[full_name] = (module, name, [case for i, case in enumerate(drawn) if i % arguments.workers == worker])
    if worker == 0:
        q, k, v = (torch.zeros(4, 1024, 8, 128, dtype=torch.bfloat16, device=arguments.device) for _ in range(3))
        results.send({"kernels": gradtile.explain(q, k, v)})
    spent = collections.Counter({full_name: 0.0 for full_name, (_, _, drawn) in tests.items() if drawn})
    while spent and time.time() < until:
        full_name = min(spent, key=spent.get)
        module, name, drawn = tests[full_name]
        case = drawn.pop()
        results.send({"test": full_name, "case": shown(case)})
        result = run_case(module, name, case)
        results.send(result)
        spent[full_name] += result["seconds"]
        if not drawn:
            del spent[full_name]
        if arguments.device == "cuda":
            torch.cuda.synchronize()  # ends the worker if the GPU can compute no more
            if torch.cuda.memory_reserved() > 8 << 30:
                torch.cuda.empty_cache()


def run_workers(arguments):
    """Returns the results of all workers, and of those that end or hang in a test."""
    context, until = multiprocessing.get_context("spawn"), time.time() + arguments.seconds
    workers, running, finished = {}, {}, []
    for worker in range(arguments.workers):
        results, sender = context.Pipe(duplex=False)
        workers[results] = context.Process(target=work, args=(arguments, worker, until, sender))
        workers[results].start()
        sender.close()
    while workers and (left := until + GRACE - time.time()) > 0:
        for results in wait(workers, left):
            try:
                message = results.recv()
            except EOFError:
                process = workers.pop(results)
                process.join()
                if process.exitcode:
                    failure = {"status": "failed", "message": f"the worker ended with {process.exitcode}"}
                    finished.append({**running.get(results, BETWEEN), **failure})
                continue
            if "kernels" in message:
                print("kernels of a large call:", message["kernels"], flush=True)
            elif "test" in message:
                running[results] = message
            else:
                finished.append({**running.pop(results), **message})
    for results, process in workers.items():
        process.kill()
        finished.append({**running.get(results, BETWEEN), "status": "failed", "message": f"not over after {GRACE} s more"})
    return finished


def report(finished):
    kinds = ["passed", "failed", "refused", "skipped"]
    columns = ["comparisons", "zero references", "seconds"]
    print(f"{'test':60s}" + "".join(f"{name:>17s}" for name in [*kinds, *columns]))
    by_test = collections.defaultdict(list)
    for result in finished:
        by_test[result["test"]].append(result)
    for name, results in [*sorted(by_test.items()), ("all", finished)]:
        statuses = collections.Counter(result["status"] for result in results)
        sums = [round(sum(result.get(column, 0) for result in results)) for column in columns]
        print(f"{name:60s}" + "".join(f"{n:17d}" for n in [*(statuses[kind] for kind in kinds), *sums]))
    for reason, count in collections.Counter(result["message"] for result in finished if result["status"] == "skipped").items():
        print(f"skipped: {count} times {reason}")
    outside = collections.defaultdict(list)
    for name, (what, _) in OUTSIDE.items():
        outside[what].append(name)
    print("outside: " + "; ".join(f"{what} ({', '.join(names)})" for what, names in outside.items()))
    bad = [result for result in finished if result["status"] in ("failed", "refused")]
    for result in bad:
        print(f"{result['status']}: {result['message']}\n    --case '{json.dumps({'test': result['test'], **result['case']})}'")
    return 1 if bad or not any(result["status"] == "passed" for result in finished) else 0


def main():
    parser = argparse.ArgumentParser(prog="scripts/judge.sh --flash-attention DIR")
    parser.add_argument("shim", type=Path)
    parser.add_argument("directory", type=Path, metavar="DIR", help="a checkout of Dao-AILab/flash-attention")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--case", type=json.loads, default={}, help="only these cases: a failure prints its own, and any part of it can be left out")
    arguments = parser.parse_args()
    arguments.test = arguments.case.pop("test", None)
    return report(run_workers(arguments))


if __name__ == "__main__":
    sys.exit(main())
