"""Scripts of PyTorch, for tests that have it."""

from enplace.frameworks.source import source_of
from enplace.frameworks.torch.measure.measure import measured_profile
from enplace.frameworks.torch.open.scripts import record_script
from enplace.processes.worker import ignore
from enplace.values.measurement import Measurement


def script(folder, text, *words):
    """Write a script; return it, with arguments, as a source."""
    path = folder / "train.py"
    path.write_text(text)
    return source_of(str(path), arguments=words, framework_name="torch")


def profile_of(source, steps=0):
    """Profile a script by so many plain steps."""
    found = record_script(source, steps, 0, ignore)
    return measured_profile("model", found.step, found.timing, Measurement(framework="torch"))
