"""Make the bundled samples from the raw files, and those of PyTorch by an estimate.

Usage: python scripts/make_samples.py WORKLOADS, a folder with gpu-profiles/ and dnn-partitioning/,
in an environment with PyTorch and transformers. Names of samples may follow: only these are made.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from enplace.frameworks.jobs import measure_profile
from enplace.frameworks.source import source_of
from enplace.readers import read_profile
from enplace.readers.samples import samples
from enplace.values.profile import Profile
from enplace.writers import write_profile

RAW = {
    "rnnlm-2-2048": "gpu-profiles/rnnlm_2_2048_fp32.json.gz",
    "transformer-6-16-2048": "gpu-profiles/transformer_6_16_2048_fp32.json.gz",
    "nmt-2-1024": "gpu-profiles/nmt_2_1024_fp32.json.gz",
    "nasnet-4-212": "gpu-profiles/nasnet_4_212_fp32.json.gz",
    "vgg-19": "gpu-profiles/vgg19_fp32.json.gz",
    "bert-3-training": "dnn-partitioning/throughput/operator_bert_l-3_training.json",
}

SCRIPTS = {
    "gpt-2": ("benchmarks/gpu/train.py", "gpt2"),
    "llama-7b": ("scripts/train_llama.py", "7b"),
}
"""A PyTorch script and its argument."""


def main(workloads: Path, names: Sequence[str]) -> None:
    """Write samples and print their sizes."""
    for sample in samples():
        if names and sample.name not in names:
            continue
        raw = RAW.get(sample.name)
        profile = read_profile(workloads / raw) if raw else _estimated(*SCRIPTS[sample.name])
        profile = replace(profile, name=sample.name)
        write_profile(sample.path, profile)
        print(f"{sample.name}: {profile.n_ops} ops, {sample.path.stat().st_size / 1024:.0f} KiB")


def _estimated(path: str, word: str) -> Profile:
    source = source_of(path, arguments=(word,), estimate="h100", framework_name="torch")
    found = measure_profile(source, "cpu:1", 1, 0)
    # The script lies in nobody else's folder.
    return replace(found, measured=replace(found.measured, source={}))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
