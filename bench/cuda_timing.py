"""Times work on a GPU with CUDA events, for the anchors in this folder."""
import statistics

import torch


def median_ms(work, rounds, warm_up_rounds):
    """Returns the median milliseconds of `rounds` calls of work(), after calls that are not measured."""
    times = []
    for i in range(-warm_up_rounds, rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if i >= 0:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)
