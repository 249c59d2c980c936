"""What the processes of a pipeline and the one that starts them agree on."""

JOB, ANSWER, WHY, PROGRESS = "job", "answer-{}", "why-{}", "progress"
"""Names of files in the folder of a pipeline: what to do; from each process, what came of it."""

OUTPUT, TOLD = "output-{}", "told"
"""What each process prints, and what ``torchrun`` itself prints."""

OWN, LOST = "own", "lost"
"""Begin the file of a process that says why it ended: for its own reason, or as another had ended.
"""

SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb-h1": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
}
"""Classes of ``torch.distributed.pipelining``."""

OF_SEVERAL = ("interleaved", "zb-h1", "zbv")
"""Those that take a list of a device's stages."""

WEIGHTS_WAIT = ("zb-h1", "zbv")
"""Those that make gradients of weights apart."""

ON_ONE_DEVICE = (
    "the plan has all modules of the model on one device, so there are no stages; make a plan with "
    "--objective throughput"
)
