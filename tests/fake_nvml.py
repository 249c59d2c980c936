"""A stand-in for ``pynvml`` with GPUs of the test's choice."""

import sys
from types import SimpleNamespace

GIB = 1 << 30


class NVMLError(Exception):
    pass


def gpu(name="H200", uuid="GPU-1", free_gib=100, slices=None, nvlinks=()):
    """Describe a GPU; ``slices`` puts it in MIG mode, with None for an empty place."""
    return SimpleNamespace(
        name=name, uuid=uuid, free=free_gib * GIB, total=141 * GIB, slices=slices, nvlinks=nvlinks
    )


class FakeNvml:
    """The functions that Enplace calls; texts are bytes, as in old versions of the package."""

    NVMLError = NVMLError
    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0

    def __init__(self, gpus, driver=True):
        self.gpus, self.driver, self.is_open = gpus, driver, False
        self.refused = ""

    def nvmlInit(self):  # noqa: N802
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.is_open = True

    def nvmlShutdown(self):  # noqa: N802
        self.is_open = False

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)
        assert self.is_open, "NVML is not open"
        if name == self.refused:
            raise NVMLError("No Permission")
        return {
            "nvmlSystemGetDriverVersion": lambda: b"570.1",
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: self.gpus[index],
            "nvmlDeviceGetMemoryInfo": lambda each: each,
            "nvmlDeviceGetName": lambda each: each.name.encode(),
            "nvmlDeviceGetUUID": lambda each: each.uuid,
            "nvmlDeviceGetMigMode": self._mig_mode,
            "nvmlDeviceGetMaxMigDeviceCount": lambda each: len(each.slices),
            "nvmlDeviceGetMigDeviceHandleByIndex": self._slice,
            "nvmlDeviceGetP2PStatus": lambda a, b, index: 0 if b.uuid in a.nvlinks else 6,
        }[name]

    def _mig_mode(self, each):
        if each.slices is None:
            raise NVMLError("Not Supported")
        return 1, 1

    def _slice(self, each, index):
        if each.slices[index] is None:
            raise NVMLError("Not Found")
        return each.slices[index]


def install(monkeypatch, *gpus, driver=True, visible=None):
    """Let this process have these GPUs, of which CUDA_VISIBLE_DEVICES shows some."""
    fake = FakeNvml(gpus, driver)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    return fake
