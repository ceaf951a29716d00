#!/usr/bin/env python3
"""Makes the pack of aarch64 tests from a build. usage: make_pack.py SOURCE PACK [SECONDS.json]"""
import json, os, re, shutil, subprocess, sys

source, pack = sys.argv[1:3]
build, sysroot = source + "/build/aarch64", source + "/build/aarch64-sysroot"
shutil.rmtree(pack, ignore_errors=True)
os.makedirs(pack)
tree = pack + "/tree"
os.makedirs(tree)
subprocess.run(f"git -C {source} archive HEAD | tar -x -C {tree}", shell=True, check=True)

listing = json.loads(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout)
with open(source + "/tests/aarch64/left_out.txt") as file:
    patterns = [re.sub(r" *#.*", "", line).strip() for line in file]
left_out = re.compile("^(" + "|".join(p.replace(".", "[.]").replace("*", ".*").replace("?", ".") for p in patterns if p) + ")( |$)")
tests, dropped, programs = [], 0, set()
for test in listing["tests"]:
    name = test["name"]
    if left_out.search(name):
        dropped += 1
        continue
    if "command" not in test:
        print("not built:", name)
        continue
    command = test["command"]
    at = next(i for i, c in enumerate(command) if c.startswith(build) and os.path.isfile(c))
    properties = {p["name"]: p["value"] for p in test["properties"]}
    environment = dict(e.split("=", 1) for e in properties.get("ENVIRONMENT", []))
    program = os.path.relpath(command[at], build)
    programs.add(program)
    tests.append({"name": name.split("  # GetParam")[0], "program": program, "arguments": command[at + 1:], "environment": environment,
                  "folder": os.path.relpath(properties.get("WORKING_DIRECTORY", build), build), "several": "RESOURCE_LOCK" in properties})
print(len(tests), "tests;", dropped, "left out;", len(programs), "programs")

# Programs and modules that tests start or load.
elf = []
for folder, _, files in os.walk(build):
    for file in files:
        path = os.path.join(folder, file)
        if os.path.islink(path) or "CMakeFiles" in path or file.endswith((".a", ".o", ".gch")):
            continue
        with open(path, "rb") as f:
            head = f.read(20)
        if head[:4] == b"\x7fELF":
            elf.append(os.path.relpath(path, build))
started = [p for p in elf if not p.endswith(".so") and p not in programs]
total = 0
kept = []
for p in elf:
    base = os.path.basename(p)
    if base in ("precompiled_test_headers",):
        continue
    kept.append(p)
    target = f"{tree}/build/aarch64/{p}"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    subprocess.run(["aarch64-linux-gnu-strip", "-o", target, f"{build}/{p}"], check=True)
    total += os.path.getsize(target)
print("programs of tests:", sorted(programs), "\nothers:", started, f"\n{total / 1e6:.0f} MB stripped")

# Shared libraries: what is linked, and what is loaded at its first use.
folders = [sysroot + f for f in ("/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu/openblas-pthread",
                                 "/usr/lib/aarch64-linux-gnu/hdf5/serial", "/lib", "/usr/lib/aarch64-linux-gnu/hdf5/serial/lib")]


def needed(path):
    text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text)


queue = {"libpcre2-8.so.0", "libutf8proc.so.2", "libutf8proc.so.3", "libz.so.1", "libzstd.so.1", "libopenblas.so.0", "ld-linux-aarch64.so.1",
         "libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"}
for p in kept:
    queue.update(needed(f"{build}/{p}"))
done = set()
size = 0
while queue:
    name = queue.pop()
    if name in done:
        continue
    done.add(name)
    found = [f"{f}/{name}" for f in folders if os.path.exists(f"{f}/{name}")]
    if not found:
        print("not in the sysroot:", name)
        continue
    for path in found[:1]:
        target = pack + "/tree/build/aarch64-sysroot/" + os.path.relpath(path, sysroot)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(os.path.realpath(path), target)
        subprocess.run(["aarch64-linux-gnu-strip", "--strip-unneeded", target], check=True)
        size += os.path.getsize(target)
        queue.update(needed(path))
loader = pack + "/tree/build/aarch64-sysroot/lib/ld-linux-aarch64.so.1"
if not os.path.exists(loader):
    os.makedirs(os.path.dirname(loader), exist_ok=True)
    shutil.copy(os.path.realpath(sysroot + "/lib/ld-linux-aarch64.so.1"), loader)
print(len(done), f"libraries, {size / 1e6:.0f} MB")

if len(sys.argv) > 3:
    with open(sys.argv[3]) as file:
        seconds = json.load(file)
    for test in tests:
        if test["name"] in seconds:
            test["seconds"] = seconds[test["name"]]
with open(pack + "/tests.json", "w") as file:
    json.dump({"source": source, "build": build, "sysroot": sysroot, "programs": [p for p in started if p in kept], "tests": tests}, file)
here = os.path.dirname(os.path.abspath(__file__))
shutil.copy(here + "/run_tests.py", pack)
shutil.copy("/usr/bin/qemu-aarch64-static", pack)
shutil.copy("/tmp/ship_wrapper", pack + "/wrapper")
