"""Whatever a script writes, measuring it changes no file of its owner's."""

import hashlib

import pytest

SCRIPT = """
import json, os, pickle, sqlite3, subprocess
import keras
import numpy as np
import tensorflow as tf
import part

os.makedirs("out/new", exist_ok=True)
log = open("out/train.log", "w")
log.write("begun")
pickle.dump([1], open(os.path.abspath("out/numbers.pkl"), "wb"))
np.save("out/x.npy", np.zeros(3))
assert np.load("out/x.npy").shape == (3,)
with sqlite3.connect("out/runs.db") as runs:
    runs.execute("create table if not exists runs (number)")
if CHILDREN:
    subprocess.run("echo child > out/child.txt", shell=True, check=True)
with open("out/starts", "a+") as starts:
    starts.seek(0)
    assert starts.read() == "kept"  # not what another start has written
    starts.write("x")
os.replace("out/starts", "out/moved")
assert open("out/moved").read() == "keptx"
os.remove("out/old")
assert not os.path.exists("out/old")

writer = tf.summary.create_file_writer("out/events")
with writer.as_default():
    tf.summary.experimental.write_raw_pb(b"", step=0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.save("out/best.keras")
model.save_weights("out/best.weights.h5")
model.export("out/saved", verbose=False)
tf.saved_model.load("out/saved")
assert keras.models.load_model("out/best.keras").count_params() == 10
tf.io.write_file("out/text", "text")
assert tf.io.read_file("out/text") == "text"
data = tf.data.Dataset.range(4)
assert len([*data.cache("out/cache")]) == len([*data.snapshot("out/snapshot")]) == 4
data.save("out/data")
assert len([*tf.data.Dataset.load("out/data")]) == 4
assert len([*data.cache("out/full")]) == FULL, "a cache that is complete is read"
with tf.io.TFRecordWriter("out/new.records") as records:
    records.write(b"a")
assert [*tf.data.TFRecordDataset("out/new.records").as_numpy_iterator()] == [b"a"]
found = tf.data.Dataset.list_files("out/*.records", shuffle=False)
assert [*found.interleave(tf.data.TFRecordDataset).as_numpy_iterator()] == [b"a"]
tf.print("printed", output_stream="file://out/printed")
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "out/steps", 1)
for _ in range(3):
    manager.save()
assert len([name for name in tf.io.gfile.listdir("out/steps") if "index" in name]) == 1
assert manager.restore_or_initialize()


class Own(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        with open("out/own.txt", "a") as own:
            own.write(f"{batch}")

    def on_epoch_end(self, epoch, logs=None):
        self.model.save("out/best.keras")


made = keras.callbacks
callbacks = [
    made.ModelCheckpoint("out/best.keras"),
    made.CSVLogger("out/log.csv"),
    made.BackupAndRestore("out/backup"),
    made.LambdaCallback(on_epoch_end=lambda epoch, logs: json.dump(logs, open("out/logs", "w"))),
    Own(),
]
model.compile("sgd", "mse")
x, y = np.ones((16, 4), "float32"), np.ones((16, 2), "float32")
model.fit(x, y, batch_size=8, epochs=2, callbacks=callbacks, verbose=0)
"""

CACHE = "import tensorflow as tf; [*tf.data.Dataset"

MEASURE = """
import ctypes
import os
from pathlib import Path
from enplace.cli import run
from enplace.frameworks import verifying
from enplace.frameworks.tensorflow.framework import FRAMEWORK

class Refusing(ctypes.CDLL):
    def __getattr__(self, name):
        return (lambda *_: 1) if name == "unshare" else super().__getattr__(name)

if REFUSED:
    ctypes.CDLL = Refusing

os.chdir("work")
few, source, steps = ["train.py", "--trust"], ["--profile", "../P.enplace"], ["--steps", "2"]
devices = ["--devices", "cpu:2"]
assert run(["profile", *few, *steps, "--warm-ups", "0", *devices, "-o", "../P.enplace"]) == 0
if REFUSED:
    place = ["place", "../P.enplace", "--cluster", "local", "--method", "round-robin"]
    assert run([*place, "-o", "../plan.json"]) == 0
    plan = ["train.py", "../plan.json", "--trust"]
    tune = ["--rounds", "1", "--time-limit", "1", "-o", "../better.json"]
    assert run(["tune", *plan, *source, *steps, *tune]) == 0
else:
    found = verifying.verify(FRAMEWORK, "cpu:2", [Path("train.py")], ["round-robin"], 2)
    assert found.checks[0].run is not None, found.checks[0].why_not
"""


def state(folder):
    """Return what a watcher of a folder can see."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (about.st_mtime_ns, about.st_size, about.st_mode, content)
    return found


@pytest.mark.parametrize("refused", [False, True], ids=["overlay", "led"])
def test_a_watched_folder_does_not_change(refused, tmp_path, run_python):
    """With overlays; and where the kernel refuses them, with functions that lead files away."""
    work = tmp_path / "work"
    (work / "out" / "backup").mkdir(parents=True)
    for name in ("best.keras", "best.weights.h5", "log.csv", "train.log", "old"):
        (work / "out" / name).write_text("of a real training")
    (work / "out" / "starts").write_text("kept")
    (work / "out" / "backup" / "training_metadata.json").write_text('{"epoch": 2, "batch": 0}')
    (work / "part.py").write_text("")
    n_cached = 2
    (work / "cache.py").write_text(f"{CACHE}.range({n_cached}).cache('out/full')]")
    assert run_python(work, "cache.py").returncode == 0
    (work / "train.py").write_text(f"CHILDREN = {not refused}\nFULL = {n_cached}\n{SCRIPT}")
    before = state(work)
    (tmp_path / "measure.py").write_text(f"REFUSED = {refused}\n{MEASURE}")
    done = run_python(tmp_path, "measure.py")
    assert done.returncode == 0, done.stderr
    assert "train wrote" in done.stderr
    assert "(out/best.keras, " in done.stderr
    assert state(work) == before
