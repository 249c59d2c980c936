"""Make the bundled samples from the raw files.

Usage: python scripts/make_samples.py WORKLOADS, a folder with gpu-profiles/ and dnn-partitioning/.
"""

import sys
from dataclasses import replace
from pathlib import Path

from enplace.readers import read_profile
from enplace.readers.samples import samples
from enplace.writers import write_profile

RAW = {
    "rnnlm-2-2048": "gpu-profiles/rnnlm_2_2048_fp32.json.gz",
    "transformer-6-16-2048": "gpu-profiles/transformer_6_16_2048_fp32.json.gz",
    "nmt-2-1024": "gpu-profiles/nmt_2_1024_fp32.json.gz",
    "nasnet-4-212": "gpu-profiles/nasnet_4_212_fp32.json.gz",
    "vgg-19": "gpu-profiles/vgg19_fp32.json.gz",
    "bert-3-training": "dnn-partitioning/throughput/operator_bert_l-3_training.json",
}


def main(workloads: Path) -> None:
    """Write every sample and print its size."""
    for sample in samples():
        profile = replace(read_profile(workloads / RAW[sample.name]), name=sample.name)
        write_profile(sample.path, profile)
        print(f"{sample.name}: {profile.n_ops} ops, {sample.path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
