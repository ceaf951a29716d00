#!/usr/bin/env python3
"""Runs the aarch64 tests of a pack under qemu-user: each test is a process with a time limit, started longest first.
usage: run_tests.py --out DIR [--done FILE] [--seconds N] [--jobs N] [--only REGEX] [--no-binfmt]
DIR/done.txt lists the tests that ended (name, state, seconds): pass it to the next call with --done. DIR/summary.txt and
DIR/failures.txt are written at the end."""
import argparse, json, os, queue, re, resource, signal, subprocess, sys, threading, time

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--done", default="")
parser.add_argument("--seconds", type=float, default=520)
parser.add_argument("--limit", type=float, default=0, help="seconds of one test; default: the whole window")
parser.add_argument("--jobs", type=int, default=0)
parser.add_argument("--nice", type=int, default=10)
parser.add_argument("--only", default="")
parser.add_argument("--every", type=int, default=1, help="only every Nth test")
parser.add_argument("--no-binfmt", action="store_true")
parser.add_argument("--shortest-first", action="store_true")
options = parser.parse_args()

begin = time.time()
end = begin + options.seconds
pack = os.path.dirname(os.path.abspath(__file__))
with open(pack + "/tests.json") as file:
    plan = json.load(file)
build, sysroot = plan["build"], plan["sysroot"]
qemu = pack + "/qemu-aarch64-static"
os.makedirs(options.out, exist_ok=True)

# The paths that are compiled into the tests.
source = plan["source"]
if not os.path.exists(source):
    os.makedirs(os.path.dirname(source), exist_ok=True)
    os.symlink(pack + "/tree", source)


def register():
    """Lets Linux start aarch64 programs with qemu."""
    folder = "/proc/sys/fs/binfmt_misc"
    if not os.path.exists(folder + "/register"):
        for command in (["modprobe", "binfmt_misc"], ["mount", "-t", "binfmt_misc", "none", folder]):
            try:
                subprocess.run(command, capture_output=True)
            except FileNotFoundError:
                pass
    if os.path.exists(folder + "/qemu-aarch64"):
        return True
    rule = (r":qemu-aarch64:M::\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
            r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:" + qemu + ":POF")
    try:
        with open(folder + "/register", "w") as file:
            file.write(rule)
        return True
    except OSError as error:
        print("binfmt_misc: " + str(error), flush=True)
        return False


has_binfmt = not options.no_binfmt and register()
# Without binfmt_misc, a static x86-64 program in the place of each aarch64 program starts qemu with PROGRAM.elf.
for program in plan["programs"]:
    path = os.path.join(build, program)
    wrapped = os.path.exists(path + ".elf")
    if not has_binfmt and not wrapped:
        os.rename(path, path + ".elf")
        with open(pack + "/wrapper", "rb") as wrapper, open(path, "wb") as file:
            file.write(wrapper.read())
        os.chmod(path, 0o755)
    elif has_binfmt and wrapped:
        os.replace(path + ".elf", path)

os.nice(options.nice)
environment = dict(os.environ, QEMU_CPU="max", QEMU_LD_PREFIX=sysroot, GRADTILE_QEMU=qemu, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="2",
                   LD_LIBRARY_PATH=sysroot + "/usr/lib/aarch64-linux-gnu/openblas-pthread")
environment.pop("LD_PRELOAD", None)

finished = {}  # name: (state, seconds) of earlier calls
attempts = {}
if options.done:
    with open(options.done) as file:
        for line in file:
            state, seconds, name = line.rstrip("\n").split("\t")
            attempts[name] = attempts.get(name, 0) + 1
            finished[name] = (state, float(seconds))

# Seconds of a test: the pack's estimate, else the mean of its program's ended tests, else 1.
means = {}
for name, (state, seconds) in finished.items():
    if state == "passed":
        total, count = means.get(name.split(".")[0], (0, 0))
        means[name.split(".")[0]] = (total + seconds, count + 1)


def expected(test):
    name = test["name"]
    if name in finished and finished[name][0] == "unfinished":
        return 1e6 + finished[name][1]
    if test.get("seconds"):
        return test["seconds"]
    total, count = means.get(name.split(".")[0], (1, 1))
    return total / count


chosen = [t for t in plan["tests"] if not options.only or re.search(options.only, t["name"])][::options.every]
todo = [t for t in chosen if finished.get(t["name"], ("",))[0] not in ("passed", "skipped")
        and not (finished.get(t["name"], ("",))[0] == "failed" and attempts[t["name"]] >= 2)]
todo.sort(key=expected, reverse=not options.shortest_first)
several, others = queue.Queue(), queue.Queue()  # tests of several processes; the others
for test in todo:
    (several if test["several"] else others).put(test)

done_file = open(options.out + "/done.txt", "w")
for name, (state, seconds) in finished.items():
    if state in ("passed", "skipped") or attempts[name] >= 2:
        for _ in range(1 if state != "failed" else attempts[name]):
            done_file.write(f"{state}\t{seconds:.1f}\t{name}\n")
    elif state == "failed":
        done_file.write(f"{state}\t{seconds:.1f}\t{name}\n")
failures = open(options.out + "/failures.txt", "w")
lock = threading.Lock()
results = {}
print(f"{len(chosen)} tests, {len(todo)} to run; binfmt_misc: {has_binfmt}; cores: {os.cpu_count()}", flush=True)


def run(test, cores):
    path = os.path.join(build, test["program"])
    command = [path] + test["arguments"]
    if has_binfmt or not os.path.exists(path + ".elf"):
        command = [qemu] + command
    start = time.time()
    limit = min(options.limit or options.seconds, end - start)
    log = os.path.join("/tmp", f"a64-{threading.get_ident()}.log")
    os.makedirs(os.path.join(build, test["folder"]), exist_ok=True)
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                   cwd=os.path.join(build, test["folder"]), env=dict(environment, **test["environment"]),
                                   preexec_fn=lambda: os.sched_setaffinity(0, cores))
        try:
            code = process.wait(timeout=max(limit, 0.1))
        except subprocess.TimeoutExpired:
            code = None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    seconds = time.time() - start
    with open(log, "rb") as file:
        text = file.read().decode(errors="replace")
    state = "unfinished" if code is None else "failed" if code != 0 else "skipped" if "[  SKIPPED ]" in text else "passed"
    with lock:
        results[test["name"]] = (state, seconds)
        done_file.write(f"{state}\t{seconds:.1f}\t{test['name']}\n")
        done_file.flush()
        if state == "failed" or (state == "unfinished" and options.limit):
            failures.write(f"=== {test['name']}: {state}, code {code}, {seconds:.1f} s, {' '.join(command)}\n{text[-6000:]}\n")
            failures.flush()


def work(tests, cores):
    while time.time() < end - 1:
        try:
            test = tests.get_nowait()
        except queue.Empty:
            return
        run(test, cores)


# Tests of several processes get four cores for themselves in half of the groups of cores; then the group's cores take others.
cores = sorted(os.sched_getaffinity(0))
jobs = options.jobs or len(cores)
cores = cores[:jobs]
groups = [set(cores[i:i + 4]) for i in range(0, len(cores), 4)]


def work_group(index):
    group = sorted(groups[index])
    if index < max(1, len(groups) // 2):
        work(several, set(group))
    threads = [threading.Thread(target=work, args=(others, {group[i], group[(i + 1) % len(group)]})) for i in range(len(group))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work(several, set(group))


threads = [threading.Thread(target=work_group, args=(i,)) for i in range(len(groups))]
for thread in threads:
    thread.start()
while any(t.is_alive() for t in threads):
    for thread in threads:
        thread.join(5)
    if int(time.time() - begin) % 60 < 6:
        print(f"{time.time() - begin:.0f} s: {len(results)} ended", flush=True)
        time.sleep(6)

state_of = {**{n: s for n, (s, _) in finished.items() if s in ("passed", "skipped", "failed")}, **{n: s for n, (s, _) in results.items()}}
seconds_of = {**{n: s for n, (_, s) in finished.items()}, **{n: s for n, (_, s) in results.items()}}
names = [t["name"] for t in chosen]
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu = usage.ru_utime + usage.ru_stime
count = lambda state: sum(state_of.get(n) == state for n in names)
left = [n for n in names if n not in state_of or state_of[n] == "unfinished"]
with open(options.out + "/summary.txt", "w") as file:
    file.write(f"{len(names)} tests: {count('passed')} passed, {count('skipped')} skipped, {count('failed')} failed, "
               f"{len(left)} not finished; this call {time.time() - begin:.0f} s, {len(results)} tests, "
               f"{sum(s for _, s in results.values()):.0f} s of tests, {cpu:.0f} CPU s, {os.cpu_count()} cores, binfmt_misc {has_binfmt}\n")
    for n in names:
        if state_of.get(n) == "failed":
            file.write(f"failed: {n} ({seconds_of[n]:.1f} s)\n")
    for n in left:
        file.write(f"not finished: {n}" + (f" (ended after {seconds_of[n]:.0f} s)\n" if n in seconds_of else "\n"))
    file.write("programs (tests ended in all calls, seconds):\n")
    for program in sorted({n.split(".")[0] for n in names}):
        ended = [n for n in names if n.split(".")[0] == program and n in state_of]
        file.write(f"  {program} {len(ended)} of {sum(n.split('.')[0] == program for n in names)}, {sum(seconds_of[n] for n in ended):.0f} s\n")
    file.write("slowest:\n")
    for n in sorted(seconds_of, key=seconds_of.get, reverse=True)[:40]:
        file.write(f"  {seconds_of[n]:.1f} {n}\n")
with open(options.out + "/summary.txt") as file:
    print(file.read(6000))
sys.stdout.flush()
os._exit(0)
