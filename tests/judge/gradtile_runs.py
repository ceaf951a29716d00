"""What all judges need: to run the program, and to read its checkpoints."""
import json
import subprocess

import numpy as np


def run(*command):
    """Returns standard output; ends the judge when the command fails."""
    finished = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if finished.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\nended with {finished.returncode}: {finished.stderr}")
    return finished.stdout


def read_checkpoint(path):
    """Returns the parameters in float64 by name, the settings and the tokenizer."""
    import h5py  # not every judge's environment has it

    with h5py.File(path) as file:
        parameters = {}
        file["params"].visititems(
            lambda name, item: parameters.update({name: np.asarray(item[()], np.float64)}) if isinstance(item, h5py.Dataset) else None)
        return parameters, json.loads(file["config/json"][0]), json.loads(file["data/json"][0])["tokenizer"]
