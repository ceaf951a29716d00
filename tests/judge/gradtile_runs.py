"""What all judges need: to run the program, and to read its checkpoints."""
import json
import subprocess

import numpy as np


def run(*command, fails=False):
    """Returns standard output, or standard error of a command that must fail; ends the judge when the command ends in the other way."""
    finished = subprocess.run([str(part) for part in command], capture_output=True)
    # Texts that a model makes need not be UTF-8.
    output, errors = (stream.decode(errors="replace") for stream in (finished.stdout, finished.stderr))
    if (finished.returncode != 0) != fails:
        raise SystemExit(f"{' '.join(map(str, command))}\nended with {finished.returncode}: {errors}")
    return errors if fails else output


def tries(*command):
    """Returns standard error if the command fails, else None."""
    finished = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    return finished.stderr if finished.returncode else None


def read_checkpoint(path):
    """Returns the parameters in float64 by name, the settings and the tokenizer."""
    import h5py  # not every judge's environment has h5py

    with h5py.File(path) as file:
        parameters = {}
        file["params"].visititems(
            lambda name, item: parameters.update({name: np.asarray(item[()], np.float64)}) if isinstance(item, h5py.Dataset) else None)
        return parameters, json.loads(file["config/json"][0]), json.loads(file["data/json"][0])["tokenizer"]
