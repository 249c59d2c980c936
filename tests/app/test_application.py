import subprocess
import sys

SCRIPT = """
import threading
from PySide6.QtCore import QElapsedTimer
from PySide6.QtTest import QTest
from enplace_studio.application import make_application

app = make_application()

class Cyclic:
    died_in = set()
    def __init__(self):
        self.me = self
    def __del__(self):
        self.died_in.add(threading.current_thread())

def litter():
    for _ in range(50_000):
        Cyclic()

thread = threading.Thread(target=litter)
thread.start()
thread.join()
print(len(Cyclic.died_in))
clock = QElapsedTimer()
clock.start()
while not Cyclic.died_in and clock.elapsed() < 10_000:
    QTest.qWait(50)
print(Cyclic.died_in == {threading.main_thread()})
"""


def test_garbage_is_collected_only_in_the_windows_thread():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout.split() == ["0", "True"], done.stderr
