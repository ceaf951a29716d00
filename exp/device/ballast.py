"""ballast.py LIMIT_MIB FILE: holds all memory of the GPU but LIMIT_MIB, and writes the least free memory of each second."""
import sys, time, torch
limit, path = int(sys.argv[1]) << 20, sys.argv[2]
torch.cuda.init(); torch.zeros(1, device="cuda")
free, total = torch.cuda.mem_get_info()
held = torch.empty(free - limit, dtype=torch.uint8, device="cuda")
free, _ = torch.cuda.mem_get_info()
least, begin = free, free
with open(path, "w", buffering=1) as f:
    f.write(f"free at the start {begin / 2**20:.0f} MiB of {total / 2**20:.0f}\n")
    last = time.time()
    while True:
        least = min(least, torch.cuda.mem_get_info()[0])
        if time.time() - last > 1:
            last = time.time(); f.write(f"most used {(begin - least) / 2**20:.0f} MiB\n")
        time.sleep(0.02)
